"""The Helm chart: rendered, linted, right by Kubernetes' schemas, and what docker-compose.yml says.

No cluster is here to run it on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.documents import REPOSITORY, declared_version
from support.processes import run_program
from support.wording import holds, says

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
    "watched": (
        *BUNDLED,
        "ingress.enabled=true",
        "ingress.host=terrine.example.org",
        "ingress.className=nginx",
        "ingress.tlsSecret=certificate",
        "ingress.annotations.cert-manager\\.io/cluster-issuer=ca",
        "oidc.issuer=https://login.example.org/realms/hospital",
        "oidc.clientId=terrine",
        "oidc.clientSecretKey=oidc_secret",
        "oidc.roleClaim=realm_access.roles",
        "oidc.admins={CN=privacy-board\\,OU=groups\\,DC=hospital,owners}",
        "oidc.auditors={auditors}",
        "networkPolicy.issuer[0].ipBlock.cidr=10.3.0.0/16",
        "nodeSelector.disk=encrypted",
        "tolerations[0].key=private",
        "tolerations[0].operator=Exists",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference"
        ".matchFields[0].key=metadata.name",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference"
        ".matchFields[0].operator=Exists",
        "podAnnotations.example\\.org/team=privacy",
        "monitoring.serviceMonitor.enabled=true",
        "monitoring.serviceMonitor.labels.release=prometheus",
        "monitoring.alerts.enabled=true",
        "monitoring.dashboard.enabled=true",
    ),
    "open": (*BUNDLED, "networkPolicy.enabled=false", "database.storageClass=fast"),
}
Manifest = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip("NO HELM on this machine: the chart is not rendered. `make tools` fetches it.")
    return run_program(found, *arguments)


def values(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def render(*settings: str, upgrade: bool = False) -> list[Manifest]:
    how = ["--is-upgrade"] if upgrade else []
    done = helm("template", "study", str(CHART), *how, *values(*settings))
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Each kind's pod, by the part that it plays."""
    templates = [m["spec"]["template"] for m in manifests if "template" in m.get("spec", {})]
    part = "app.kubernetes.io/component"
    return {template["metadata"]["labels"][part]: template["spec"] for template in templates}


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """The one manifest of this kind."""
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


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
    for upgrade in (False, True):
        manifests = render(*VARIANTS[variant], upgrade=upgrade)
        assert len(manifests) >= 3
        for manifest in manifests:
            if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):  # not Kubernetes'
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
        ("ingress.enabled=true", "ingress/host"),
        ("ingress.host=https://terrine.example.org", "ingress/host"),
        ("settings.TERRINE_OIDC_ISSUER=https://x", "TERRINE_OIDC_ISSUER"),
        ("oidc.clientId=terrine", "oidc/clientId"),  # and no issuer
        ("oidc.issuer=http://login.example.org", "oidc/issuer"),
        ("oidc.issuer=https://login.example.org", "oidc"),  # and no client
        ("monitoring.serviceMonitor.interval=often", "interval"),
    ],
)
def test_a_wrong_value_is_refused(setting: str, why: str) -> None:
    done = helm("template", "study", str(CHART), *values(*EXTERNAL, setting))
    assert done.returncode != 0
    assert why in done.stderr


def test_an_issuer_needs_to_know_where_it_sends_browsers_back() -> None:
    issuer = ("oidc.issuer=https://login.example.org", "oidc.clientId=terrine", "oidc.admins={a}")
    done = helm("template", "study", str(CHART), *values(*EXTERNAL, *issuer))
    assert done.returncode != 0
    holds(done.stderr, "oidc.publicUrl", "ingress.host")
    (server,) = pods(render(*EXTERNAL, *issuer, "oidc.publicUrl=https://t.example.org"))["server"][
        "containers"
    ]
    assert variables(server)["TERRINE_PUBLIC_URL"] == "https://t.example.org"


def test_below_a_prefix_the_ingress_the_server_and_its_issuer_have_the_same_one() -> None:
    made = render(*VARIANTS["watched"], "pathPrefix=/hospital/terrine")
    (rule,) = only(made, "Ingress")["spec"]["rules"]
    assert [each["path"] for each in rule["http"]["paths"]] == ["/hospital/terrine"]
    (server,) = pods(made)["server"]["containers"]
    assert variables(server)["TERRINE_PATH_PREFIX"] == "/hospital/terrine"
    public = "https://terrine.example.org/hospital/terrine"
    assert variables(server)["TERRINE_PUBLIC_URL"] == public


def test_it_says_what_the_compose_file_says() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    made = pods(render(*BUNDLED))
    for part in ("server", "migrate"):
        (container,) = made[part]["containers"]
        expected = compose[part]["environment"] | {"TERRINE_DATA_DIR": "/var/lib/terrine/data"}
        del expected["TERRINE_PUBLIC_URL"], expected["TERRINE_STARTED_BY"]
        if part == "server":
            expected |= {"TERRINE_FORWARDED_ALLOW_IPS": "", "TERRINE_PATH_PREFIX": ""}
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


def test_an_upgrade_waits_for_the_migration_and_an_installation_does_not() -> None:
    """Before an installation the database may not be there, and after it nothing is ready."""
    first, later = (only(render(*BUNDLED, upgrade=each), "Job") for each in (False, True))
    assert "annotations" not in first["metadata"]
    assert later["metadata"]["annotations"] == {
        "helm.sh/hook": "pre-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }
    assert first["metadata"]["name"] != later["metadata"]["name"], "the first is deleted by Helm"
    restarts = [job["spec"]["template"]["spec"].pop("restartPolicy") for job in (first, later)]
    assert restarts == ["OnFailure", "Never"]
    assert first["spec"]["template"] == later["spec"]["template"]
    assert first["spec"]["backoffLimit"] > later["spec"]["backoffLimit"]
    needed = {kind for each in later["spec"]["template"]["spec"]["volumes"] for kind in each}
    assert needed == {"name", "emptyDir", "secret"}, "nothing of the release that it comes before"
    assert all(manifest["kind"] != "Secret" for manifest in render(*BUNDLED, upgrade=True))


def test_students_reach_it_through_an_ingress_over_tls_alone() -> None:
    assert not any(m["kind"] == "Ingress" for m in render(*BUNDLED))
    manifests = render(*VARIANTS["watched"])
    ingress = only(manifests, "Ingress")
    assert ingress["metadata"]["annotations"] == {"cert-manager.io/cluster-issuer": "ca"}
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [
        {"hosts": ["terrine.example.org"], "secretName": "certificate"}
    ]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = path["backend"]["service"]
    (there,) = (
        m for m in manifests if m["kind"] == "Service" and m["metadata"]["name"] == service["name"]
    )
    assert service["port"]["name"] in {port["name"] for port in there["spec"]["ports"]}
    usual = only(render(*BUNDLED, "ingress.enabled=true", "ingress.host=t.example.org"), "Ingress")
    assert usual["spec"]["tls"] == [{"hosts": ["t.example.org"]}]


def test_people_sign_in_through_the_issuer_and_servers_alone_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifests = render(*VARIANTS["watched"])
    (server,) = pods(manifests)["server"]["containers"]
    told = {n: v for n, v in variables(server).items() if re.match("TERRINE_(OIDC|PUBLIC)_", n)}
    assert told == {
        "TERRINE_OIDC_ISSUER": "https://login.example.org/realms/hospital",
        "TERRINE_OIDC_CLIENT_ID": "terrine",
        "TERRINE_OIDC_CLIENT_SECRET_FILE": "/run/secrets/oidc_secret",
        "TERRINE_PUBLIC_URL": "https://terrine.example.org",
        "TERRINE_OIDC_ROLE_CLAIM": "realm_access.roles",
        "TERRINE_OIDC_ADMINS": '["CN=privacy-board,OU=groups,DC=hospital","owners"]',
        "TERRINE_OIDC_AUDITORS": '["auditors"]',
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    read = pytest.importorskip("terrine_addons.oidc.settings").OidcSettings().oidc_admins
    assert read == ("CN=privacy-board,OU=groups,DC=hospital", "owners"), "the server takes them"
    assert "oidc_secret" in secrets(pods(manifests)["server"])
    assert "oidc_secret" not in secrets(pods(manifests)["migrate"])
    reached = [m for m in manifests if m["kind"] == "NetworkPolicy" and "10.3.0.0" in json.dumps(m)]
    assert [m["metadata"]["name"] for m in reached] == ["study-server"]


def test_pods_run_where_they_may() -> None:
    for upgrade in (False, True):
        manifests = render(*VARIANTS["watched"], upgrade=upgrade)
        for part, pod in pods(manifests).items():
            assert pod["nodeSelector"] == {"disk": "encrypted"}
            assert pod["tolerations"] == [{"key": "private", "operator": "Exists"}]
            assert ("affinity" in pod) == (part == "server")
        template = only(manifests, "Deployment")["spec"]["template"]
        assert template["metadata"]["annotations"] == {"example.org/team": "privacy"}


def test_prometheus_and_grafana_get_what_compose_gives_them() -> None:
    kinds = {"ServiceMonitor", "PrometheusRule"}
    assert not kinds & {manifest["kind"] for manifest in render(*BUNDLED)}
    manifests = render(*VARIANTS["watched"])
    monitor = only(manifests, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = (
        m
        for m in manifests
        if m["kind"] == "Service" and selected <= m["metadata"]["labels"].items()
    )
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"] == {"name": "terrine-metrics", "key": "token"}
    asks = yaml.safe_load((REPOSITORY / "docker" / "monitoring" / "prometheus.yml").read_text())
    (scraped,) = asks["scrape_configs"]
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert job == scraped["job_name"], "alerts and dashboard know it by one name"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    files = CHART / "files" / "monitoring"
    rules = yaml.safe_load((files / "alerts.yaml").read_text())
    assert only(manifests, "PrometheusRule")["spec"] == rules
    (dashboard,) = (
        m
        for m in manifests
        if m["kind"] == "ConfigMap" and "grafana_dashboard" in m["metadata"]["labels"]
    )
    assert dashboard["data"] == {"terrine.json": (files / "dashboard.json").read_text()}
    compose = (REPOSITORY / "docker-compose.yml").read_text()
    for file in ("alerts.yaml", "dashboard.json"):
        assert f"./{(files / file).relative_to(REPOSITORY)}:" in compose


def test_the_notes_have_the_commands_for_what_was_chosen() -> None:
    def notes(*settings: str) -> str:
        dry = ("--dry-run=client", "--namespace", "labels")
        done = helm("install", "study", str(CHART), *dry, *values(*settings))
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]

    usual, watched = notes(*BUNDLED), notes(*VARIANTS["watched"])
    for said in (usual, watched):
        holds(said, "deployment/study", "doctor")
    holds(watched, "https://terrine.example.org")
    holds(watched, "create", "secret", "terrine-metrics", "token=")
    holds(watched, "token", "create", "--role", "metrics")
    assert "https://" not in usual
    assert not says(usual, "metrics")


def test_the_values_in_the_guide_are_taken_together(tmp_path: Path) -> None:
    guide = (REPOSITORY / "docs" / "deploying.md").read_text()
    section = guide.partition("## Kubernetes\n")[2].partition("\n## ")[0]
    files = []
    for number, text in enumerate(re.findall(r"(?ms)^```yaml\n(.*?)^```", section)):
        files += ["--values", str(tmp_path / f"{number}.yaml")]
        Path(files[-1]).write_text(text)
    assert len(files) == 4
    done = helm("template", "study", str(CHART), *values(*BUNDLED), *files)
    assert done.returncode == 0, done.stderr
    manifests = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
    (server,) = pods(manifests)["server"]["containers"]
    assert variables(server)["TERRINE_PUBLIC_URL"] == "https://terrine.example.org"
    assert only(manifests, "Ingress")["spec"]["rules"][0]["host"] == "terrine.example.org"
