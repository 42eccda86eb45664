"""Sound model files, configurations and logs, and seeded ways to damage them (tools/fuzz_files.py)."""
