"""An artifact at a path that is a link: what it names is written, and the link stays one."""

import pytest

from funcaot.errors import ArtifactError
from funcaot.exported import files
from tests.exported.test_files import signature, write


def test_a_link_to_a_file(tmp_path):
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "a.pt2", tmp_path / "latest.pt2"
    write(target)
    link.symlink_to(target)
    write(link, name="second")
    assert link.is_symlink()
    assert files.read_signature(target) == files.read_signature(link) == signature("second")
    assert sorted(each.name for each in target.parent.iterdir()) == ["a.pt2"]


def test_a_link_to_a_folder(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "current").symlink_to("store", target_is_directory=True)
    write(tmp_path / "current" / "a.pt2")
    assert files.read_signature(tmp_path / "store" / "a.pt2") == signature("first")
    (tmp_path / "next").mkdir()
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("next", target_is_directory=True)
    with pytest.raises(ArtifactError):
        files.read_signature(tmp_path / "current" / "a.pt2")


def test_a_link_to_nothing_yet(tmp_path):
    (tmp_path / "latest.pt2").symlink_to("made.pt2")
    write(tmp_path / "latest.pt2")
    assert (tmp_path / "latest.pt2").is_symlink()
    assert files.read_signature(tmp_path / "made.pt2") == signature("first")


def test_a_link_to_itself_gives_way(tmp_path):
    (tmp_path / "latest.pt2").symlink_to("latest.pt2")
    write(tmp_path / "latest.pt2")
    assert files.read_signature(tmp_path / "latest.pt2") == signature("first")


def test_a_link_that_leads_to_no_folder_is_refused(tmp_path):
    (tmp_path / "latest.pt2").symlink_to("gone/a.pt2")
    with pytest.raises(ArtifactError):
        write(tmp_path / "latest.pt2")
    assert (tmp_path / "latest.pt2").is_symlink()
    assert [each.name for each in tmp_path.iterdir()] == ["latest.pt2"]
