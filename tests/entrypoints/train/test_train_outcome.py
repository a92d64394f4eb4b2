"""One process: its exit code, its failure file, its streams."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

SHOW = """\
import json, os, sys
json.dump({"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ), "path": sys.path}, sys.stdout)
"""


def test_the_script_sees_what_it_sees_on_sagemaker(container: Any) -> None:
    container.write("train.py", SHOW)
    container.configure(sagemaker_program="train.py", epochs=3, lr=0.1, name="a b", flag=True)
    container.hosts("algo-1", current_instance_type="ml.m5.xlarge")
    (container.config / "inputdataconfig.json").write_text(
        '{"train": {"TrainingInputMode": "File"}}'
    )
    container.env |= {"TRAINING_JOB_NAME": "Demo", "AWS_REGION": "us-west-2", "MY_OWN": "x=y"}
    result = container.run()
    assert (result.code, result.failure) == (0, "")
    seen = json.loads(result.out)
    assert seen["argv"] == [
        "train.py",
        "--epochs",
        "3",
        "--flag",
        "True",
        "--lr",
        "0.1",
        "--name",
        "a b",
    ]
    assert seen["cwd"] == str(container.code)
    env = seen["env"]
    assert env["SM_CHANNEL_TRAIN"] == str(container.ml / "input" / "data" / "train")
    assert env["SM_HP_FLAG"] == "true"
    assert (env["CURRENT_HOST"], env["SAGEMAKER_JOB_NAME"]) == ("algo-1", "Demo")
    assert (env["SAGEMAKER_REGION"], env["MY_OWN"]) == ("us-west-2", "x=y")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", "7777")
    assert (env["PYTHONUNBUFFERED"], env["USE_TORCH_XLA"]) == ("1", "0")
    assert "OMP_NUM_THREADS" not in env
    assert str(container.code) in seen["path"]


def test_what_the_user_set_stays(container: Any) -> None:
    container.write("train.py", SHOW)
    container.configure(sagemaker_program="train.py")
    container.env |= {"USE_TORCH_XLA": "1", "PYTHONUNBUFFERED": "0", "MASTER_PORT": "4000"}
    env = json.loads(container.run().out)["env"]
    assert (env["USE_TORCH_XLA"], env["PYTHONUNBUFFERED"], env["MASTER_PORT"]) == ("1", "0", "4000")


def test_scripts_in_a_sub_directory_import_from_the_top(container: Any) -> None:
    container.write("common/__init__.py", "WORD = 'found'\n")
    container.write("scripts/train.py", "import common, beside; print(common.WORD, beside.WORD)\n")
    container.write("scripts/beside.py", "WORD = 'too'\n")
    container.configure(sagemaker_program="scripts/train.py")
    assert container.run().out == "found too\n"


@pytest.mark.parametrize(
    ("script", "code", "failure"),
    [
        ("import sys; sys.exit(42)", 42, "rank 0: exited with code 42"),
        ("import os; os._exit(3)", 3, "rank 0: exited with code 3: train.py --lr 1"),
        ("import sys; sys.exit('no data')", 1, "rank 0: SystemExit: no data"),
        ("import os; os.kill(os.getpid(), 9)", 137, "rank 0: killed (SIGKILL), as the kernel"),
        ("import os; os.kill(os.getpid(), 11)", 139, "rank 0: killed by SIGSEGV: train.py"),
        ("import nowhere", 1, "rank 0: ModuleNotFoundError: No module named 'nowhere'"),
        ("def f(:", 1, "rank 0: SyntaxError: "),
        ("raise KeyboardInterrupt", 130, "rank 0: KeyboardInterrupt"),
    ],
)
def test_the_exit_code_and_the_reason_are_the_scripts(
    container: Any, script: str, code: int, failure: str
) -> None:
    container.write("train.py", script + "\n")
    container.configure(sagemaker_program="train.py", lr=1)
    result = container.run()
    assert result.code == code
    assert result.failure.startswith(failure)
    assert f"(exit code {code})" in result.err


def test_the_reason_names_the_users_own_lines_innermost_first(container: Any) -> None:
    container.write(
        "train.py",
        """\
        import json
        from model import Model

        def main():
            try:
                json.loads("{")
            except ValueError:
                Model().forward("x" * 2000)

        main()
        """.replace("\n        ", "\n").lstrip(),
    )
    container.write(
        "model.py",
        "class Model:\n    def forward(self, batch):\n        raise ValueError(f'shapes: {batch}')\n",
    )
    container.configure(sagemaker_program="train.py")
    result = container.run()
    lines = result.failure.splitlines()
    assert lines[0].startswith("rank 0: ValueError: shapes: xxx")
    assert lines[1:] == [
        "at model.py:3 in forward: raise ValueError(f'shapes: {batch}')",
        'at train.py:8 in main: Model().forward("x" * 2000)',
        "at train.py:10: main()",
    ]
    assert len(result.failure) <= 1024
    assert "Traceback (most recent call last)" in result.err


def test_an_error_inside_a_library_shows_that_line_and_the_users(container: Any) -> None:
    container.write("train.py", "import json\njson.loads('{')\n")
    container.configure(sagemaker_program="train.py")
    lines = container.run().failure.splitlines()
    assert lines[0].startswith("rank 0: JSONDecodeError: Expecting property name")
    assert "decoder.py:" in lines[1]
    assert lines[2:] == ["at train.py:2: json.loads('{')"]


def test_a_failure_file_of_the_users_own_stays(container: Any) -> None:
    container.write(
        "train.py",
        "import os, sys\nfrom pathlib import Path\n"
        "Path(os.environ['SM_OUTPUT_DIR'], 'failure').write_text('my own words')\nsys.exit(7)\n",
    )
    container.configure(sagemaker_program="train.py")
    result = container.run()
    assert (result.code, result.failure) == (7, "my own words")


def test_a_failure_file_of_an_earlier_run_does_not(container: Any) -> None:
    container.write("train.py", "")
    container.configure(sagemaker_program="train.py")
    (container.ml / "output").mkdir()
    (container.ml / "output" / "failure").write_text("yesterday")
    assert container.run().failure == ""


def test_secrets_are_masked_wherever_they_are_said(container: Any) -> None:
    container.write(
        "train.py", "import sys\nraise ValueError('https://me:pw123@host/ ' + 'AKIA' + 'A' * 16)\n"
    )
    container.configure(sagemaker_program="train.py", hf_token="t0ken", wandb_api_key="k3y", lr=1)
    result = container.run()
    said = "\n".join(result.talk) + result.failure
    assert "running train.py --hf_token" in said
    assert "--lr 1" in said
    for secret in ("t0ken", "k3y", "pw123", "AKIAA"):
        assert secret not in said


def test_every_line_arrives_and_streams_are_inherited(container: Any) -> None:
    container.write(
        "train.py",
        "import os\nfor i in range(20000): print('line', i, 'ü' * 5)\nos.write(2, b'\\xff\\r50%\\r')\nos._exit(0)\n",
    )
    container.configure(sagemaker_program="train.py")
    with (container.root / "out").open("wb") as out, (container.root / "err").open("wb") as err:
        process = container.start(stdout=out, stderr=err)
        assert process.wait(60) == 0
    lines = (container.root / "out").read_text().splitlines()
    assert lines == [f"line {i} üüüüü" for i in range(20000)]
    assert b"\xff\r50%\r" in (container.root / "err").read_bytes()


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_do_no_harm(container: Any, closed: str) -> None:
    container.write("train.py", "import os\nopen('ran', 'w').write(str(os.getpid()))\n")
    container.configure(sagemaker_program="train.py")
    container.prefix = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    assert container.run().code == 0
    assert (container.code / "ran").read_text().isdecimal()


def test_a_variable_too_long_for_linux_is_left_out_and_said(container: Any) -> None:
    container.write(
        "train.py",
        "import os; print('SM_TRAINING_ENV' in os.environ, os.environ['SM_HP_K7'][:3])\n",
    )
    container.configure(sagemaker_program="train.py", **{f"k{n}": "x" * 2400 for n in range(80)})
    result = container.run()
    assert (result.code, result.out) == (0, "False xxx\n")
    assert any("SM_TRAINING_ENV is left out" in line for line in result.talk)


def test_other_programs_than_python(container: Any) -> None:
    container.write("job.sh", '#!/bin/bash\necho "$0 $*" "$SM_HP_LR"\nexit 5\n')
    container.configure(sagemaker_program="job.sh", lr=1)
    result = container.run()
    assert (result.code, result.out) == (5, "./job.sh --lr 1 1\n")
    assert result.failure == "rank 0: exited with code 5: job.sh --lr 1"


def test_a_shell_script_without_a_first_line_runs_in_sh(container: Any) -> None:
    container.write("bin/job.sh", "echo here in $(basename $PWD)\n")
    container.configure(sagemaker_program="bin/job.sh")
    assert container.run().out == "here in code\n"


def test_windows_line_endings_are_named(container: Any) -> None:
    container.write("job.sh", "#!/bin/bash\r\necho no\r\n")
    container.configure(sagemaker_program="job.sh")
    result = container.run()
    assert result.code == 1
    assert result.failure.startswith("job.sh has Windows line endings")


def test_an_executable_without_a_suffix(container: Any) -> None:
    container.write("tool", f"#!{sys.executable}\nimport sys; print(sys.argv[1:])\n")
    container.configure(sagemaker_program="tool", n=1)
    assert container.run().out == "['-n', '1']\n"


def test_a_program_for_another_machine_is_126(container: Any) -> None:
    container.write("tool", "no program at all")
    container.configure(sagemaker_program="tool")
    result = container.run()
    assert (result.code, result.failure) == (126, "./tool cannot be executed: Exec format error")


def test_a_missing_interpreter_is_127(container: Any) -> None:
    container.write("job.sh", "#!/no/such/shell\n")
    container.configure(sagemaker_program="job.sh")
    result = container.run()
    assert result.code == 127
    assert result.failure.startswith("./job.sh cannot be executed: No such file")


def test_no_script_but_an_obvious_one(container: Any) -> None:
    container.write("train.py", "print('it')\n")
    container.write("utils.py", "")
    result = container.run()
    assert (result.code, result.out) == (0, "it\n")
    assert any("names no script: train.py is the one" in line for line in result.talk)


def test_no_script_and_several_candidates(container: Any) -> None:
    container.write("a.py", "")
    container.write("b.py", "")
    result = container.run()
    assert result.code == 1
    assert "names no script" in result.failure
    assert "a.py, b.py" in result.failure


@pytest.mark.parametrize("argv", [("serve",), ("train", "--lr", "1"), ("--lr", "1")])
def test_other_arguments_are_a_usage_error(container: Any, argv: tuple[str, ...]) -> None:
    result = container.run(*argv)
    assert result.code == 2
    assert "unexpected arguments" in result.err
    assert "ContainerArguments" in result.err


def test_no_argument_is_a_usage_error(container: Any) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "hotfire.entrypoints.train"],
        env=container.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "docker run IMAGE train" in process.stderr


def test_children_left_in_the_background_do_not_outlive_the_script(container: Any) -> None:
    # The fixture fails the test if they do.
    container.write(
        "train.py",
        "import subprocess\n"
        "subprocess.Popen('sleep 60 & sleep 60', shell=True, start_new_session=True)\n",
    )
    container.configure(sagemaker_program="train.py")
    assert container.run(timeout=20).code == 0
