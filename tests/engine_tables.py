"""The flag tables of all engines that have some, by engine."""

from importlib import import_module
from importlib.util import find_spec

from slipstream.engines import folders
from slipstream.parsing.flag_table import Table


def _tables(package: str) -> list[Table]:
    """Those of a module, also where it has them in a dictionary."""
    found = vars(import_module(f"{package}.flags")).values()
    inner = [table for value in found if isinstance(value, dict) for table in value.values()]
    return [value for value in [*found, *inner] if isinstance(value, Table)]


TABLES = {
    folder.name: _tables(folder.package)
    for folder in folders()
    if folder.configuration and find_spec(f"{folder.package}.flags")
}
