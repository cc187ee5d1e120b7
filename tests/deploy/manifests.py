"""The manifests of deploy/ as the API server would see them, and what they are held against."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"

Object = dict[str, Any]


def documents(file: Path) -> list[Object]:
    """The objects of one file."""
    return [each for each in yaml.safe_load_all(file.read_text("utf-8")) if each]


def built(directory: Path) -> list[Object]:
    """What `kustomize build` makes of a directory, as far as these use it: resources, and patches that add.

    Whatever else a kustomization.yaml holds is an error, so that nothing is passed over.
    """
    (kustomization,) = documents(directory / "kustomization.yaml")
    assert kustomization.keys() <= {"apiVersion", "kind", "resources", "patches"}
    objects: list[Object] = []
    for resource in kustomization["resources"]:
        path = directory / resource
        objects += built(path) if path.is_dir() else documents(path)
    for patch in kustomization.get("patches", ()):
        targets = [each for each in objects if each["kind"] == patch["target"]["kind"]]
        assert targets, f"{directory}: a patch of nothing"
        for target in targets:
            _add(target, yaml.safe_load((directory / patch["path"]).read_text("utf-8")))
    return objects


def _add(target: Object, operations: list[Object]) -> None:
    for operation in operations:
        assert operation["op"] == "add"
        *parents, name = operation["path"].strip("/").split("/")
        place: Any = target
        for parent in parents:
            place = place[parent]
        place[name] = operation["value"]


def named(objects: list[Object], kind: str, name: str = "") -> Object:
    """The one object of that kind, and of that name where one is given."""
    (found,) = [each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found


def custom_schema(kind: str) -> Object:
    """The schema of an agent-sandbox resource, closed as the API server prunes. Skips where they are not at hand."""
    directory = os.environ.get("DRIVER_TEST_CRDS")
    if not directory:
        pytest.skip("DRIVER_TEST_CRDS names no directory with the schemas of agent-sandbox")
    read = json.loads((Path(directory) / f"{kind}.v1beta1.json").read_text("utf-8"))
    schema: Object = read["schema"]
    _close(schema)
    schema["properties"]["metadata"] = {"type": "object"}  # of Kubernetes, and open
    return schema


def _close(schema: Object) -> None:
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    for below in schema.get("properties", {}).values():
        _close(below)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            _close(schema[name])


_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity."""
    return int(text[:-2]) * _UNITS[text[-2:]]
