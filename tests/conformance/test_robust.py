"""What one run or one collection must not do to the next."""

from __future__ import annotations

from executor import OutputLimits, Session


def test_a_removed_folder_of_the_workspace_is_there_again_for_the_next_run(session: Session) -> None:
    session.load("sales-report")
    session.exec("rm -rf /workspace/* /tmp/home")
    result = session.exec(
        'echo a > "$OUTPUT_DIR/a"; echo b > out/b; cd "$HOME"; ls /workspace', skill="sales-report"
    )
    assert (result.stderr, result.exit_code) == ("", 0)
    assert result.stdout.split() == ["inputs", "out", "runs", "skills", "work"]
    assert [file.path for file in session.collect()] == ["out/a", "out/b"]


def test_a_collection_says_what_its_caps_cut_and_what_it_left_out(session: Session) -> None:
    session.exec("cd out; for i in 1 2 3; do echo $i > $i; done; ln -s /etc/passwd link")
    found = session.collect("out/**", limits=OutputLimits(max_files=2))
    assert [file.path for file in found] == ["out/1", "out/2"]
    assert found.limits_hit == ["max_files"]
    assert found.warnings == [
        "out/link is a link: not collected",
        "3 files match; only the first 2 are returned",
    ]
