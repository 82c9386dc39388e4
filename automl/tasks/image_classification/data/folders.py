"""Images in one folder per class, inside `train/` and `val/` or `test/` or without these; or with labels in
`labels.csv`.

Tiny ImageNet's layout is also read:

    train/n01443537/images/n01443537_0.JPEG
    val/images/val_0.JPEG
    val/val_annotations.txt     file, class and box, separated by tabs
    test/images/test_0.JPEG     without labels

Source: http://cs231n.stanford.edu/tiny-imagenet-200.zip

`val/` is the test split, as in ImageNet's archives, unless there is also a `test/`. SPLIT_NAMES lists other
usual names of splits. A folder with such a name that contains images is a class if folders of other names are
beside it. Images with two labels, and copies of an image, are found by the hash of their files. Where
`labels.csv` says that folders are labels, an image has those of all folders with a copy of it.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from automl.base.errors import InputError
from automl.base.text import read_text
from automl.data.csv_table import LABELS, SEPARATOR, Table, read_groups, read_labels, resolve_file
from automl.data.files import (
    find_on_disk,
    hash_contents,
    is_clutter,
    is_file,
    links_to_parent,
    name_to_text,
    normalise_nfc,
    walk,
)
from automl.data.pictures import FORMATS, HEIF, HEIF_HINT, SUFFIXES, get_suffix, is_image, is_picture
from automl.data.records import Item, Listing
from automl.data.splits import SPLIT_NAMES, SPLIT_OF
from automl.data.tally import Tally, join_examples
from automl.tasks.image_classification.targets import LAYOUT, ImageClasses, ImageTarget, find_target

ANNOTATIONS, IMAGES = "val_annotations.txt", "images"  # of Tiny ImageNet


def read_image_folder(root: Path, readable: Mapping[str, str]) -> Listing[Item]:
    """List the dataset in the folder `root`.

    Files that are not read, links that lead back and images in two classes are left out and counted. Groups
    come from `labels.csv`, in every layout.

    `readable` has class names for names of folders.

    Raises:
        InputError: There are no images, only one class, only train/, classes in val/ or test/ that train/
            lacks, a class whose pictures all cannot be read, or files that cannot be read.
    """
    table = read_labels(root)
    target = None if table is None else find_target(root / LABELS, table)
    listing, groups = _list_images(root, table, target), read_groups(root, table)
    if target is not None and not target.columns:
        _merge_copies(root, listing, groups)
    counts = {
        split: {key: len(images) for key, images in keys.items()} for split, keys in listing.splits.items()
    }
    target = (target or ImageClasses()).fit(counts, listing.sources)
    splits = {split: _make_items(root, listing, split, target, groups) for split in listing.splits}
    names = tuple(readable.get(name, name_to_text(name)) for name in target.names)
    splits = drop_contradictions(splits, names, listing.tally)
    return Listing(classes=names, splits=splits, tally=listing.tally, target=target.kind)


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """Images of each split by class, or by the key of another target, before they are hashed."""

    sources: dict[str, Path]  # the folder or table that defines each split
    splits: dict[str, dict[str, list[Path]]]
    contents: dict[Path, bytes] = field(default_factory=dict)  # hashes, where labels depend on them
    tally: Tally = field(default_factory=Tally)


def _list_images(root: Path, table: Table | None, target: ImageTarget | None) -> _Listing:
    """List the images by a table with the target, or else by folders."""
    if table is not None and target is not None and target.columns:
        return _list_by_table(root, table, target)
    folders = _find_split_folders(root)
    walked = _Walk(root=root)
    own = {folder.name for folder in folders.values()}
    inner = [each.name for each in folders.get("test", root).iterdir() if each.is_dir()]
    if len(folders) == 3 and _has_annotations(folders["validation"]) and inner == [IMAGES]:
        unlabelled, _ = _walk_images(folders["test"], root, walked)
        walked.leave_out("images of the test split, which have no labels", unlabelled)
        folders = {"train": folders["train"], "test": folders["validation"]}
    splits = {
        split: _read_validation_labels(folder) if _has_annotations(folder) else _list_by_class(folder, walked)
        for split, folder in folders.items()
    }
    entries = [] if folders["train"] == root else sorted(os.scandir(root), key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir() and not is_clutter(entry.name) and entry.name not in own:
            walked.tally.leave_out("folders that belong to no split", [f"{name_to_text(entry.name)}/"])
    walked.count()
    return _Listing(sources=folders, splits=splits, tally=walked.tally)


def _list_by_table(root: Path, content: Table, target: ImageTarget) -> _Listing:
    tally, table = Tally(), root / LABELS
    splits = _list_labelled(root, content, target)
    if "train" not in splits:
        raise InputError(f"{table} has no rows of the train split. Add some, or remove the column of splits")
    if "test" not in splits and "validation" in splits:  # `val/` is the test split of folders, too.
        splits["test"] = splits.pop("validation")
    named = {image for classes in splits.values() for images in classes.values() for image in images}
    unnamed = [
        file
        for folder, _, names in walk(root)
        for file in map(folder.joinpath, names)
        if get_suffix(file.name) in SUFFIXES and file not in named
    ]
    tally.leave_out(f"images that {LABELS} does not name", _relative_names(root, unnamed))
    for classes in splits.values():
        for images in classes.values():
            counts = Counter(images)
            tally.leave_out(
                f"rows of {LABELS} that repeat an image",
                _relative_names(root, list((counts - Counter({*images})).elements())),
            )
            images[:] = counts
    return _Listing(sources=dict.fromkeys(splits, table), splits=splits, tally=tally)


def _list_labelled(root: Path, content: Table, target: ImageTarget) -> dict[str, dict[str, list[Path]]]:
    """Return the images of each split by key. All are in "train" if the table has no column of splits."""
    table = root / LABELS
    images: dict[str, dict[str, list[Path]]] = {}
    for line, row in content.rows:
        image = resolve_file(root, row["file"], line)
        key = target.parse(row, f"{table}, line {line}: {image.name}")
        if (name := row.get("split", "train").strip().lower()) not in SPLIT_OF:
            known = ", ".join(SPLIT_OF)
            raise InputError(f"{table}, line {line}: the split must be one of {known}; got {row['split']!r}")
        images.setdefault(SPLIT_OF[name], {}).setdefault(key, []).append(image)
    return images


def _has_annotations(folder: Path) -> bool:
    """Return whether `folder` has a table with the labels of its images."""
    return is_file(folder / ANNOTATIONS) and (folder / IMAGES).is_dir()


def _read_validation_labels(folder: Path) -> dict[str, list[Path]]:
    """Return the images of each class, sorted, by the table in `folder`."""
    table = folder / ANNOTATIONS
    classes: dict[str, list[Path]] = {}
    for number, line in enumerate(read_text(table).splitlines(), start=1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        if not rest or not rest[0].strip():
            raise InputError(f"{table}, line {number}: {name[:60]!r} has no class; write FILE, a tab, CLASS")
        if not name or Path(name).name != name:
            raise InputError(f"{table}, line {number}: {name[:60]!r} must be a file in {folder / IMAGES}")
        image = find_on_disk(folder / IMAGES, name)
        if not is_file(image):
            raise InputError(f"{table}, line {number}: there is no file {image}")
        classes.setdefault(normalise_nfc(rest[0].strip()), []).append(image)
    return {name: sorted(images) for name, images in classes.items()}


def _find_split_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each split that exists, by the split's name."""
    folders = {entry.name.lower(): Path(entry.path) for entry in os.scandir(root) if entry.is_dir()}
    named = [folders[name] for name in SPLIT_OF if name in folders]
    if not named:
        return {"train": root}
    others = sorted(folder.name for folder in folders.values() if folder not in named)
    others = [name for name in others if not is_clutter(name) and _has_images(root / name)]
    if others and all(map(_is_class, named)):
        return {"train": root}
    present: dict[str, Path] = {}
    for split, names in SPLIT_NAMES.items():
        candidates = [folders[name] for name in names if name in folders]
        if len(candidates) > 1:
            both = " and ".join(f"{folder.name}/" for folder in candidates)
            raise InputError(f"{root} has {both}, which are both the {split} split; keep one of them")
        if candidates:
            present[split] = candidates[0]
    if "train" not in present or len(present) == 1:
        existing, missing = ("val/ or test/", "train/")
        if "train" in present:
            existing, missing = (f"{present['train'].name}/", "val/ or test/")
        beside = f", and beside it {', '.join(others[:20])}" if others else ""
        raise InputError(f"{root} has {existing} but no {missing}{beside}; a dataset is {LAYOUT}")
    if len(present) == 3:
        return present
    return {"train": present["train"], "test": present.get("test") or present["validation"]}


def _is_class(folder: Path) -> bool:
    """Return whether `folder` contains images itself; a split contains folders of classes."""
    entries = [Path(entry.path) for entry in os.scandir(folder) if not is_clutter(entry.name)]
    return any(file.is_file() and is_image(file) for file in entries) and not any(map(_has_images, entries))


def _has_images(folder: Path) -> bool:
    """Return whether there are images in a folder or below."""
    return folder.is_dir() and any(is_image(path / name) for path, _, names in walk(folder) for name in names)


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """Files and folders that were left out while folders of classes were walked."""

    root: Path
    tally: Tally = field(default_factory=Tally)
    others: list[Path] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    clutter: list[Path] = field(default_factory=list)

    def leave_out(self, kind: str, files: Sequence[Path]) -> None:
        self.tally.leave_out(kind, _relative_names(self.root, files))

    def count(self) -> None:
        """Add the files and folders left out to the tally."""
        self.leave_out("files that cannot be read as images", self.others)
        self.leave_out("folders without images", self.empty)
        self.leave_out("links to a folder above them", self.links)
        self.leave_out("files of the operating system or hidden", self.clutter)


def _list_by_class(folder: Path, walked: _Walk) -> dict[str, list[Path]]:
    """Return the images below each folder in `folder`, sorted, without folders that have none."""
    # Raises InputError for a folder whose pictures all cannot be read: a class would be lost.
    classes: dict[str, list[Path]] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if is_clutter(entry.name):
            if not entry.is_dir():
                walked.clutter.append(path)
        elif not entry.is_dir():
            if is_picture(path):
                walked.leave_out("images outside of the folders of classes", [path])
        elif links_to_parent(path, (walked.root, folder)):
            walked.links.append(path)
        else:
            images, others = _walk_images(path, folder, walked)
            if images:
                classes.setdefault(normalise_nfc(entry.name), []).extend(images)
            elif pictures := [file for file in others if is_picture(file)]:
                is_heif = any(get_suffix(file.name) in HEIF for file in pictures)
                hint = f"{HEIF_HINT}; " if is_heif and "HEIF" not in FORMATS else ""
                raise InputError(
                    f"{path} has {len(pictures)} pictures, none of which can be read: "
                    f"{join_examples([file.name for file in pictures])}; {hint}convert them to JPEG or PNG, "
                    f"or remove the folder"
                )
            else:
                walked.empty.append(path)
            walked.others.extend(others)
    return classes


def _walk_images(folder: Path, above: Path, walked: _Walk) -> tuple[list[Path], list[Path]]:
    """Return the images below `folder`, and the other files."""
    images: list[Path] = []
    others: list[Path] = []
    for path, _, files in walk(
        folder, above=(walked.root, above), clutter=walked.clutter, links=walked.links
    ):
        for name in files:
            file = path / name
            (images if is_image(file) else others).append(file)
    return sorted(images), sorted(others)


def _merge_copies(root: Path, listing: _Listing, groups: Mapping[Path, str]) -> None:
    """Keep one file of each image in a split. Its key is the labels of all folders that have a copy."""
    for split, folders in listing.splits.items():
        images = [image for images in folders.values() for image in images]
        listing.contents.update(zip(images, hash_contents(images), strict=True))
        copies: dict[bytes, dict[Path, str]] = defaultdict(dict)
        for label, images in folders.items():
            for image in images:
                copies[listing.contents[image]][image] = label
        merged: dict[str, list[Path]] = defaultdict(list)
        for labels in copies.values():
            image = min(labels, key=lambda image: image not in groups)
            merged[SEPARATOR.join(sorted({*labels.values()}))].append(image)
            listing.tally.keep(MERGED, _relative_names(root, [copy for copy in labels if copy != image]))
        listing.splits[split] = merged


def _make_items(
    root: Path, listing: _Listing, split: str, target: ImageTarget, groups: Mapping[Path, str]
) -> list[Item]:
    keys, known = listing.splits[split], listing.contents
    keyed = [(target.encode(key), image) for key in sorted(keys) for image in keys[key]]
    hashes = [known[i] for _, i in keyed] if known else hash_contents([image for _, image in keyed])
    return [
        Item(
            name_to_text(image.relative_to(root).as_posix()),
            image,
            label,
            content,
            groups.get(image, ""),
            values=values,
            shown=target.caption(label, values) if values else "",
        )
        for ((label, values), image), content in zip(keyed, hashes, strict=True)
    ]


def _relative_names(root: Path, files: Sequence[Path]) -> list[str]:
    return [name_to_text(file.relative_to(root)) for file in files]


CONTRADICTION = "images with two different labels"
NEEDED = f"{CONTRADICTION} (kept, since a class would have none without them)"
MERGED = "copies of another image, which has the labels of their folders, too"
COPY = "copies of another image of their class and split"


def drop_contradictions(
    splits: Mapping[str, Sequence[Item]], classes: Sequence[str], tally: Tally
) -> dict[str, list[Item]]:
    """Leave out images that have two targets, in one split or in several. Count them and copies in `tally`.

    No label can be learned from them, and one of the two would always count as wrong. They stay if a class of
    a split would have no image without them. Copies with one label are kept: a user may repeat images on
    purpose, and copies are always in one split.
    """
    by_content: dict[bytes, list[Item]] = defaultdict(list)
    for items in splits.values():
        for item in items:
            by_content[item.content].append(item)
    double = {c: items for c, items in by_content.items() if len({*map(_target, items)}) > 1}
    kept = {split: [item for item in items if item.content not in double] for split, items in splits.items()}
    pairs = [_describe_pair(items, classes) for items in double.values()]
    if all(
        {item.label for item in kept[split]} == {item.label for item in items}
        for split, items in splits.items()
    ):
        tally.leave_out(CONTRADICTION, pairs)
    else:
        tally.keep(NEEDED, pairs)
        kept = {split: list(items) for split, items in splits.items()}
    for items in kept.values():
        tally.keep_copies(COPY, ((item.name, item.content + f"{_target(item)}".encode()) for item in items))
    return kept


def _target(item: Item) -> tuple[int, str]:
    return item.label, item.shown


def _describe_pair(items: Sequence[Item], classes: Sequence[str]) -> str:
    first = items[0]
    other = next(item for item in items if _target(item) != _target(first))
    if first.name == other.name:  # Two rows of `labels.csv` name one file.
        both = " and ".join(item.shown or classes[item.label] for item in (first, other))
        return f"{first.name} as {both}"
    return f"{first.name} and {other.name}"
