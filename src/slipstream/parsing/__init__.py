"""What engines are given and what they print, read: shell text, flag tables, configurations, logs."""
