"""Which files are programs, and which are refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lmcache_client.errors import ConfigError
from lmcache_sidecar.program_files import find_programs


def write(path: Path, mode: int = 0o644) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    path.chmod(mode)
    return path


def test_how_a_program_is_run_follows_from_its_name(tmp_path: Path) -> None:
    python, shell, binary = (write(tmp_path / "a.py"), write(tmp_path / "b.sh"), write(tmp_path / "c", 0o755))
    programs = find_programs([str(path) for path in (binary, shell, python)])
    assert [(program.name, program.command) for program in programs] == [
        ("c", (str(binary),)),
        ("b.sh", ("/bin/sh", str(shell))),
        ("a.py", (sys.executable, "-u", str(python))),
    ]


def test_of_a_folder_the_direct_files_are_run_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.py", "a.sh", ".hidden.py", "README.md", "deeper/c.py"):
        write(tmp_path / name)
    write(tmp_path / "run", 0o755)
    assert [program.name for program in find_programs([str(tmp_path)])] == ["a.sh", "b.py", "run"]


def test_programs_of_one_name_are_distinguished(tmp_path: Path) -> None:
    locations = [str(write(tmp_path / folder / "a.py")) for folder in ("one", "two", "three")]
    assert [program.name for program in find_programs(locations)] == ["a.py", "a.py#2", "a.py#3"]


def test_an_empty_folder_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_programs([str(tmp_path)]) == ()
    assert f"there are no programs in {tmp_path}" in caplog.text


def refusal(*locations: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        find_programs([str(location) for location in locations])
    return str(refused.value)


def test_what_cannot_be_run_is_refused_with_a_remedy(tmp_path: Path) -> None:
    missing, plain, fine = tmp_path / "missing.py", write(tmp_path / "notes.txt"), write(tmp_path / "a.py")
    assert refusal(missing).endswith(
        f"{missing}: No such file or directory; give the path of a program, or of a folder of them"
    )
    assert "is no .py, no .sh and not executable; `chmod +x` makes it so" in refusal(plain)
    assert f"{fine} is given twice" in refusal(tmp_path, fine)
    assert "neither a file nor a folder" in refusal(Path("/dev/null"))


def test_what_all_users_can_change_is_refused(tmp_path: Path) -> None:
    program = write(tmp_path / "folder" / "a.py", 0o666)
    assert refusal(program).endswith(
        f"{program} is not run, because every user of this machine can write to {program}; `chmod o-w` it"
    )
    program.chmod(0o644)
    program.parent.chmod(0o777)
    assert f"can write to {program.parent}; `chmod o-w` it" in refusal(program)
    assert f"can write to {program.parent}; `chmod o-w` it" in refusal(program.parent)
    program.parent.chmod(0o1777)
    assert len(find_programs([str(program)])) == 1  # no other user can replace it there
    assert "can write to" in refusal(program.parent)  # and anybody can add another one


def test_a_link_is_judged_by_what_it_leads_to(tmp_path: Path) -> None:
    program = write(tmp_path / "elsewhere" / "a.py", 0o666)
    link = tmp_path / "link.py"
    link.symlink_to(program)
    assert f"can write to {program}" in refusal(link)
    assert f"can write to {program}" in refusal(tmp_path)


@pytest.mark.parametrize("name", [b"a\nb.py", b"caf\xe9.py"])
def test_a_name_that_status_could_not_say_is_refused(tmp_path: Path, name: bytes) -> None:
    path = write(tmp_path / os.fsdecode(name))
    assert refusal(path) == (
        f"--runtime-plugin-locations: {str(path)!r} has characters that logs and `/status` cannot show; rename it"
    )
    path.rename(tmp_path / "caf\xe9 au lait.py")
    assert [program.name for program in find_programs([str(tmp_path)])] == ["caf\xe9 au lait.py"]
