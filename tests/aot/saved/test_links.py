"""A file of programs at a path that is a link, or in a folder that is one."""

import pytest

from funcaot.errors import ArtifactError
from tests.aot.saved.reloading import is_loaded, misses
from tests.aot.saved.test_files import loaded, saved


def test_a_link_to_a_file_stays_one(tmp_path):
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "programs", tmp_path / "latest"
    link.symlink_to(target)
    saved(link)
    assert link.is_symlink()
    assert [each.name for each in target.parent.iterdir()] == ["programs"]
    assert is_loaded(loaded(link))
    assert is_loaded(loaded(target))


def test_a_link_to_a_folder_that_is_set_elsewhere(tmp_path):
    for name in ("store", "empty"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to("store", target_is_directory=True)
    saved(link / "programs")
    assert is_loaded(loaded(tmp_path / "store" / "programs"))
    link.unlink()
    link.symlink_to("empty", target_is_directory=True)
    assert misses(loaded(link / "programs")) == 1


def test_a_link_to_itself_gives_way(tmp_path):
    (tmp_path / "latest").symlink_to("latest")
    assert misses(loaded(tmp_path / "latest")) == 1
    assert is_loaded(loaded(saved(tmp_path / "latest")))


def test_a_link_that_leads_to_no_folder(tmp_path):
    (tmp_path / "latest").symlink_to("gone/programs")
    assert misses(loaded(tmp_path / "latest")) == 1
    with pytest.raises(ArtifactError, match="can't be written"):
        saved(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
