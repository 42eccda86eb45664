import sys

if not sys.flags.safe_path:  # `python -m` puts the current folder first: modules there would hide installed ones
    del sys.path[0]

from slipstream.cli import main

main()
