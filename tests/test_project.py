"""The project as a whole: light import, one source for each fact, nothing that belongs to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

import chapters
import pytest
import yaml
from conftest import ROOT

import joma_lib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FLOORS = [
    {"_lazy", "__init__", "claims", "metrics", "flow"},
    {"runs", "invariants", "dynamics", "latent_tree", "cluster", "salience"},
    {"block", "hierarchy", "language"},
    {"figures", "pretrained", "recorder"},
    {"cli", "explore"},
]


def tracked() -> list[str]:
    try:
        out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [name for name in out.splitlines() if (ROOT / name).is_file()]


def test_import_is_light():
    code = "import sys, joma_lib; print(sorted({'torch', 'transformers', 'sympy', 'numpy', 'xarray'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    "module", ["metrics", "invariants", "dynamics", "latent_tree", "runs", "claims", "flow"]
)
def test_lower_floors_import_no_torch(module):
    code = f"import sys, joma_lib.{module}; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_imports_only_go_down():
    level = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    for file in (ROOT / "joma_lib").rglob("*.py"):
        parts = file.relative_to(ROOT / "joma_lib").with_suffix("").parts
        own = parts[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "joma_lib":
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joma_lib."):
                names = [(node.module or "").split(".")[1]]
            for name in names:
                if name in level and own in level and name != own:
                    assert level[name] <= level[own], f"joma_lib.{own} imports {name} from a higher floor"


def test_every_public_module_is_reachable_and_documented():
    for name in joma_lib._SUBMODULES:
        if not ((ROOT / "joma_lib" / f"{name}.py").exists() or (ROOT / "joma_lib" / name).is_dir()):
            continue
        module = getattr(joma_lib, name)
        assert module.__doc__, f"joma_lib.{name} has no docstring"
        for public in module.__all__:
            thing = getattr(module, public)
            if callable(thing):
                assert (thing.__doc__ or "").strip(), f"joma_lib.{name}.{public} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        joma_lib.nonsense  # noqa: B018


def test_environment_is_in_step_with_the_package():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    listed = environment["dependencies"]
    plain = [entry for entry in listed if isinstance(entry, str)]
    assert f"python{PROJECT['project']['requires-python']}" in plain
    assert set(PROJECT["project"]["dependencies"]) == {
        p for p in plain if not p.startswith(("python", "pip"))
    }
    (pip,) = [entry["pip"] for entry in listed if isinstance(entry, dict)]
    (extras,) = re.findall(r"-e \.\[(.*)\]", pip[0])
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_lock_holds_what_the_package_asks_for():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lock.splitlines() if "==" in line
    }
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = PROJECT["project"]["dependencies"] + [entry for extra in extras for entry in extra]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;~! ]", entry)[0]).lower() for entry in wanted}
    assert names - {"joma-lib"} <= locked


def test_no_upper_pins_on_what_colab_brings():
    for entry in PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["torch"]:
        assert "<" not in entry and "==" not in entry, entry


def test_version_stands_in_one_place():
    assert chapters.version() == joma_lib.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == joma_lib.__version__


def test_repository_address_stands_in_one_place():
    address = chapters.config()["repository"]["url"]
    allowed = {"_config.yml"}
    for name in tracked():
        if name.endswith((".py", ".md", ".toml", ".yml", ".cff", ".cfg")) and name not in allowed:
            assert address not in (ROOT / name).read_text(encoding="utf-8"), f"{name} repeats the address"


def test_no_machine_paths_are_committed():
    pattern = re.compile(r"(?<![\w.])/(?:work|farm|root)/|/home/[a-z]+/(?!me)")
    here = "tests/test_"
    for name in tracked():
        if name.endswith((".py", ".md", ".toml", ".yml", ".json", ".ipynb", ".lock")) and not name.startswith(
            here
        ):
            found = pattern.search((ROOT / name).read_text(encoding="utf-8"))
            assert not found, f"{name} holds {found[0] if found else ''}"


def test_ci_calls_the_commands_of_the_readme():
    readme, ci = (
        (ROOT / "README.md").read_text(encoding="utf-8"),
        (ROOT / ".ci" / "run").read_text(encoding="utf-8"),
    )
    for command in ("make book", "make test"):
        assert command in readme and command in ci


def test_data_is_small_and_safe():
    files = [file for file in (ROOT / "joma_lib" / "data").iterdir() if file.is_file()]
    assert {file.suffix for file in files} <= {".nc", ".json"}
    assert sum(file.stat().st_size for file in files) < 10_000_000


def test_files_are_loaded_without_pickle():
    for name in tracked():
        if name.endswith((".py", ".md")) and not name.startswith("tests/"):
            text = (ROOT / name).read_text(encoding="utf-8")
            assert not re.search(r"pickle\.loads?\(|allow_pickle=True|trust_remote_code=True", text), name
            for call in re.findall(r"torch\.load\([^\n]*", text):
                assert "weights_only=True" in call, f"{name}: {call}"
