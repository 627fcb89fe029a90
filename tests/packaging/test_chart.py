"""The Helm chart: rendered, linted, right by Kubernetes' schemas, and what docker-compose.yml says.

No cluster is here to run it on.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from releasing import REPOSITORY, declared_version

CHART = REPOSITORY / "charts" / "terrine"
EXTERNAL = ("database.host=db.example.org",)
BUNDLED = ("database.bundled=true",)
VARIANTS = {
    "external": EXTERNAL,
    "bundled": BUNDLED,
    "replicas": (*EXTERNAL, "replicas=3", "data.accessMode=ReadWriteMany"),
    "everything": (
        *EXTERNAL,
        "database.options=sslmode=verify-full",
        "database.port=6432",
        "image.digest=sha256:" + "0" * 64,
        "image.pullSecrets={registry}",
        "settings.TERRINE_DEVICE=cpu",
        "checkpointKey=checkpoint.key",
        "data.existingClaim=teachers",
        "data.storageClass=fast",
        "networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8",
        "networkPolicy.database[0].ipBlock.cidr=10.1.0.0/16",
        "networkPolicy.witnesses[0].ipBlock.cidr=10.2.0.0/16",
    ),
    "open": (*BUNDLED, "networkPolicy.enabled=false", "database.storageClass=fast"),
}
Manifest = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip("NO HELM on this machine: the chart is not rendered. `make tools` fetches it.")
    return subprocess.run([found, *arguments], capture_output=True, text=True, check=False)


def values(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def render(*settings: str) -> list[Manifest]:
    done = helm("template", "study", str(CHART), *values(*settings))
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Each kind's pod, by the part that it plays."""
    templates = [m["spec"]["template"] for m in manifests if "template" in m.get("spec", {})]
    part = "app.kubernetes.io/component"
    return {template["metadata"]["labels"][part]: template["spec"] for template in templates}


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def secrets(pod: Manifest) -> set[str]:
    found = [volume["secret"]["items"] for volume in pod["volumes"] if "secret" in volume]
    return {item["path"] for items in found for item in items}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_passes_the_linter_and_kubernetes_schemas(variant: str) -> None:
    done = helm("lint", "--strict", str(CHART), *values(*VARIANTS[variant]))
    assert done.returncode == 0, done.stdout + done.stderr
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="NO KUBERNETES-VALIDATE: `make tools` fetches it."
    )
    manifests = render(*VARIANTS[variant])
    assert len(manifests) >= 3
    for manifest in manifests:
        schemas.validate(manifest, "1.37", strict=True)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("database.host=", "host"),
        ("replicas=0", "replicas"),
        ("replicas=2", "accessMode"),
        ("replica=2", "replica"),
        ("image.digest=latest", "digest"),
        ("database.options=?sslmode=require", "options"),
        ("settings.TERRINE_SECRET_KEY_FILE=x", "TERRINE_SECRET_KEY_FILE"),
        ("settings.TERRINE_MAX_BATCH=64", "TERRINE_MAX_BATCH"),  # a number; variables are text
        ("database.bundled=true", "host"),  # and a host besides
    ],
)
def test_a_wrong_value_is_refused(setting: str, why: str) -> None:
    done = helm("template", "study", str(CHART), *values(*EXTERNAL, setting))
    assert done.returncode != 0
    assert why in done.stderr


def test_it_says_what_the_compose_file_says() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    made = pods(render(*BUNDLED))
    for part in ("server", "migrate"):
        (container,) = made[part]["containers"]
        expected = compose[part]["environment"] | {"TERRINE_DATA_DIR": "/var/lib/terrine/data"}
        if part == "server":
            expected["TERRINE_FORWARDED_ALLOW_IPS"] = ""
        expected["TERRINE_DATABASE_URL"] = expected["TERRINE_DATABASE_URL"].replace(
            "@db/", "@study-db:5432/"
        )
        assert variables(container) == expected
        assert container["args"] == compose[part]["command"]
        assert container["image"] == compose[part]["image"]
        assert secrets(made[part]) == set(compose[part]["secrets"])
    (postgres,) = made["database"]["containers"]
    place = {"PGDATA": "/var/lib/postgresql/data/pgdata"}
    assert variables(postgres) == compose["db"]["environment"] | place
    assert postgres["image"] == compose["db"]["image"]
    assert postgres["readinessProbe"]["exec"]["command"] == compose["db"]["healthcheck"]["test"][1:]
    assert secrets(made["database"]) == set(compose["db"]["secrets"])
    role = Path("files") / "service-role.sh"
    assert (CHART / role).read_bytes() == (REPOSITORY / "docker" / "db" / role.name).read_bytes()


def test_replicas_sign_the_log_with_the_key_that_the_secret_has() -> None:
    file = "TERRINE_CHECKPOINT_KEY_FILE"
    without = pods(render(*EXTERNAL))["server"]
    assert file not in variables(without["containers"][0])
    for part, pod in pods(render(*VARIANTS["everything"])).items():
        (container,) = pod["containers"]
        signs = part == "server"
        assert (variables(container).get(file) == "/run/secrets/checkpoint.key") == signs
        assert ("checkpoint.key" in secrets(pod)) == signs
    (asks,) = (
        manifest["metadata"]["name"]
        for manifest in render(*VARIANTS["everything"])
        if manifest["kind"] == "NetworkPolicy" and "10.2.0.0/16" in json.dumps(manifest)
    )
    assert asks == "study-server", "witnesses are asked by servers alone"


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_are_locked_down_as_the_containers_are(variant: str) -> None:
    manifests = render(*VARIANTS[variant])
    for pod in pods(manifests).values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "TERRINE_PORT would be that of a service"
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
    everyone = {tuple(pods([m])) for m in manifests if m["kind"] in ("Deployment", "Job")}
    assert everyone == {("server",), ("migrate",)}
    guarded = [
        m["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for m in manifests
        if m["kind"] == "NetworkPolicy"
    ]
    assert sorted(guarded) == ([] if variant == "open" else sorted(pods(manifests)))


def test_it_runs_the_image_of_this_version_as_the_image_is_made() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == declared_version()
    server = pods(render(*EXTERNAL))["server"]
    (container,) = server["containers"]
    image = (REPOSITORY / "Dockerfile").read_text()
    assert f"--uid {server['securityContext']['runAsUser']} " in image
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in image
    asked = {container[probe]["httpGet"]["path"] for probe in container if "Probe" in probe}
    served = json.loads((REPOSITORY / "docs" / "openapi.json").read_text())["paths"]
    assert asked == {"/healthz", "/readyz"} & served.keys()
