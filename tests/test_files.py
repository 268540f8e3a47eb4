"""Files are written whole or not at all, and never in the place of what is no file."""

import os
from pathlib import Path

import pytest

from esth._files import check_folder, hold, write_text
from esth.errors import InputError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.json"
    write_text(target, "one")
    write_text(target, "two")
    assert target.read_text() == "two" and [p.name for p in target.parent.iterdir()] == ["a.json"]


def test_a_device_a_pipe_or_a_folder_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InputError, match="it is there and is no file"):
            write_text(path, "x")
    assert pipe.is_fifo() and sorted(p.name for p in tmp_path.iterdir()) == ["pipe"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_what_writing_fails_at_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "\ud800")
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_cannot_be_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_folder(tmp_path / "new" / "folder")
    check_folder(Path("relative-and-new"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    for path in (tmp_path / "file", tmp_path / "file" / "under"):
        with pytest.raises(InputError, match="file is a file"):
            check_folder(path)


def test_one_holder(tmp_path: Path) -> None:
    class Holder:
        pass

    holder = Holder()
    assert hold(tmp_path / "lock", holder) == b""
