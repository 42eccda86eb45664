"""llama.cpp: its server, and llama-cpp-python."""
