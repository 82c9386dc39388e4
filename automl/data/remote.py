"""Copy data at an address, such as `s3://bucket/photos`, into the cache."""

import os
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath

from automl.base.errors import InputError
from automl.data.arrow import map_in_threads
from automl.data.files import hash_all, name_to_text
from automl.storage.cache_folder import cache_root, once
from automl.storage.storage import ATTEMPTS, Storage, is_address

AT_ONCE = 32  # requests for small files, which mostly wait


def local_copy(path: str | Path) -> Path:
    """Return the path of data on this machine. Those at an address are copied into the cache first.

    Their copy is made once for each state of the files: their names, sizes and times. One that was
    interrupted continues. Raises InputError if there is nothing at the address, or it cannot be read.
    """
    return _copy(str(path)) if is_address(str(path)) else Path(path).expanduser()


def existing_copy(path: str | Path) -> Path:
    """Return `local_copy`. Raise InputError if nothing is there, which names what is called alike."""
    copy = local_copy(path)
    if not copy.exists():
        near = get_close_matches(copy.name, [name_to_text(each.name) for each in copy.parent.glob("*")], n=1)
        hint = f". Did you mean {copy.with_name(near[0])}?" if near else ""
        raise InputError(f"there is no file or folder {copy}; pass --data PATH with one that exists{hint}")
    return copy


@cache  # lists the files once in a process
def _copy(address: str) -> Path:
    source = Storage(address, attempts=ATTEMPTS)
    if source.local is not None:
        return source.local
    name, is_file = source.name, False
    try:
        files = source.files()
        if not files and (is_file := source.parent.exists(name)):  # such as an archive
            source, files = source.parent, {name: source.parent.stamp(name)}
    except OSError as error:
        raise InputError(f"the data at {address} cannot be read ({error})") from error
    if not files:
        raise InputError(f"there are no data at {address}")
    if unsafe := [file for file in files if ".." in PurePosixPath(file).parts]:
        raise InputError(f"the data at {address} have a file outside of their folder: {unsafe[0]!r}")
    state = [address, *(f"{file}:{stamp}" for file, stamp in sorted(files.items()))]
    target = cache_root() / "copies" / hash_all(state).hex()[:32]
    begun = target.with_name(f"{target.name}.part")
    below = begun if is_file else begun / name

    def fetch(file: str) -> None:
        if (below / file).exists():
            return
        part = below / f"{file}.part"
        try:
            source.fetch(file, part)
        except OSError as error:
            if error.errno is not None and not isinstance(error, FileNotFoundError):
                raise  # an error of this machine's disk
            raise InputError(f"{source}/{file} cannot be read ({error})") from error
        os.replace(part, below / file)

    def copy(temporary: Path) -> None:
        for _ in map_in_threads(f"copying {address}", list(files), fetch, threads=AT_ONCE):
            pass
        os.replace(begun, temporary)

    return once(target, copy) / name
