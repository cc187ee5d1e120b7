"""The manifests of deploy/: accepted by the API's schemas, and right where a schema says nothing."""

import copy
import json
import re
import shutil
import subprocess
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from driver import __version__, settings
from driver.check import reading
from tests.deploy.manifests import DEPLOY, Object, built, custom_schema, documents, named, quantity

BASE = built(DEPLOY / "base")
OVERLAYS = {"gvisor": "gvisor", "kata": "kata"}
TEMPLATES = {"base": BASE} | {name: built(DEPLOY / "overlays" / name) for name in OVERLAYS}
CLAIM = documents(DEPLOY / "example" / "claim.yaml")[0]
CUSTOM = {
    f"{place}-{each['kind']}-{each['metadata']['name']}": each
    for place, objects in TEMPLATES.items()
    for each in objects
    if each["apiVersion"].startswith("extensions.agents")
} | {"example-claim": CLAIM}
NATIVE = [named(BASE, "Namespace"), named(BASE, "NetworkPolicy"), *built(DEPLOY / "alerts")]
# For what is unpacked, beside what programs may write.
REPOSITORY = 4 << 30


@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> Object:
    """The SandboxTemplate's spec, in the base and in each overlay."""
    spec: Object = named(TEMPLATES[request.param], "SandboxTemplate")["spec"]
    return spec


@pytest.fixture
def pod(template: Object) -> Object:
    spec: Object = template["podTemplate"]["spec"]
    return spec


@pytest.fixture
def container(pod: Object) -> Object:
    (only,) = pod["containers"]
    found: Object = only
    return found


@pytest.fixture
def read(container: Object) -> settings.Settings:
    """The settings that the driver would have there."""
    claimed = {each["name"]: each["value"] for each in CLAIM["spec"]["env"]}
    given = {each["name"]: each["value"] for each in container["env"]}
    assert not claimed.keys() & given.keys()  # a claim may not override them
    cluster = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    result = reading.read(claimed | given | cluster)
    assert result.problems == ()
    assert {name for name in claimed | given if name.startswith(("DRIVER_", "HEPHAESTUS_"))} <= result.known
    return result.settings


@pytest.mark.parametrize("each", CUSTOM.values(), ids=CUSTOM)
def test_the_schemas_of_agent_sandbox(each: Object) -> None:
    """Each of its resources is valid, without a field that the API server would drop."""
    schema = custom_schema(each["kind"])
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(each)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(each | {"spec": each["spec"] | {"unheardOf": True}})


@pytest.mark.parametrize("each", NATIVE, ids=lambda each: str(each["kind"]))
def test_the_schemas_of_kubernetes(each: Object) -> None:
    """What is Kubernetes' own is valid, without a field that it does not know."""
    kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_the_pod(pod: Object) -> None:
    """The Pod that a template makes is valid, and a field that is misspelt would be found."""
    whole: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sandbox"}, "spec": pod}
    kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)
    wrong: Object = whole | {"spec": copy.deepcopy(pod)}
    wrong["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", ["base", "overlays/gvisor", "overlays/kata", "alerts"])
def test_kustomize_makes_the_same(name: str) -> None:
    """What the other tests look at is what kustomize builds."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    made = subprocess.run(["kubectl", "kustomize", DEPLOY / name], capture_output=True, check=True).stdout
    assert sorted(map(as_text, yaml.safe_load_all(made))) == sorted(map(as_text, built(DEPLOY / name)))


def as_text(each: Object) -> str:
    return json.dumps(each, sort_keys=True)


def test_the_namespace_holds_all() -> None:
    """Every object is in the namespace that refuses what is not restricted."""
    namespace = named(BASE, "Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for each in [*BASE, CLAIM]:
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == namespace["name"]


def test_a_closed_network_from_the_first_moment() -> None:
    """Every Pod of the namespace is closed in both directions before any template's policy is there."""
    assert named(BASE, "NetworkPolicy")["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_the_way_to_the_gateway(template: Object, read: settings.Settings) -> None:
    """One rule, to one kind of Pod on one TCP port; nothing comes in, and no address block is allowed."""
    assert template["networkPolicyManagement"] == "Managed"
    policy = template["networkPolicy"]
    assert policy["ingress"] == []
    (rule,) = policy["egress"]
    (peer,) = rule["to"]
    assert peer["namespaceSelector"]["matchLabels"]
    assert peer["podSelector"]["matchLabels"]
    (port,) = rule["ports"]
    assert port["protocol"] == "TCP"
    assert re.fullmatch(rf"https://[0-9.]+:{port['port']}", read.gateway_url)


def test_what_a_claim_may_add(template: Object) -> None:
    """Variables, which must not override; no volumes."""
    assert template["envVarsInjectionPolicy"] == "Allowed"
    assert template["volumeClaimTemplatesPolicy"] == "Disallowed"


def test_no_way_into_the_cluster(pod: Object) -> None:
    """No credential, no address, no name server and no namespace of the host."""
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert not any(pod[name] for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"))
    assert (pod["dnsPolicy"], pod["dnsConfig"]) == ("None", {"nameservers": ["127.0.0.1"]})
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod["volumes"])


def test_what_protects_the_token(pod: Object, container: Object) -> None:
    """A user without capabilities who cannot become another, on a file system that cannot be written."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert min(pod["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")) > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is context["privileged"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not {"livenessProbe", "readinessProbe", "startupProbe", "lifecycle"} & container.keys()
    assert pod["restartPolicy"] == "Never"


def test_the_gate_is_on(read: settings.Settings) -> None:
    """The driver proves the policy against the API server, with the time that it has by default."""
    assert str(read.isolation.target) == "10.96.0.1:443"
    assert read.isolation.window == 10


def test_time_to_stop(pod: Object, read: settings.Settings) -> None:
    """The kubelet waits for longer than the driver takes, its overtime included."""
    assert pod["terminationGracePeriodSeconds"] >= read.stop_grace + 5


def test_memory(container: Object, read: settings.Settings) -> None:
    """Programs are stopped before the container is: the driver's share fits beside them."""
    assert read.program.memory is not None
    assert quantity(container["resources"]["limits"]["memory"]) >= read.program.memory + settings.DRIVER_SHARE
    assert read.program.memory > read.program.session_heap


def test_disks(pod: Object, container: Object, read: settings.Settings) -> None:
    """No volume is full before the programs' bound says so, and all of them together fit into the container's."""
    sizes = {volume["name"]: quantity(volume["emptyDir"]["sizeLimit"]) for volume in pod["volumes"]}
    assert sizes["workspace"] >= read.program.disk + REPOSITORY
    assert sizes["tmp"] >= read.program.disk
    assert sum(sizes.values()) < quantity(container["resources"]["limits"]["ephemeral-storage"])


def test_every_directory_that_is_written_is_there(pod: Object, container: Object, read: settings.Settings) -> None:
    """Workspace, HOME and TMPDIR are volumes, and each volume is used."""
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert mounts.keys() == {str(read.workspace), environment["HOME"], environment["TMPDIR"]}
    assert sorted(mounts.values()) == sorted(volume["name"] for volume in pod["volumes"])
    assert not any(mount.get("readOnly") for mount in container["volumeMounts"])


def test_limits_are_set(container: Object) -> None:
    """Nothing of a node is taken without a bound."""
    resources = container["resources"]
    assert resources["limits"].keys() == resources["requests"].keys() == {"cpu", "memory", "ephemeral-storage"}


def test_the_image_is_of_this_version(container: Object) -> None:
    """The example names the version that it goes with."""
    assert container["image"].endswith(f":{__version__}")


@pytest.mark.parametrize("name", ["review", "conversation"])
def test_pools(name: str) -> None:
    """Each sort of sandbox has a pool of the template, and none is kept warm without a token."""
    pool = named(BASE, "SandboxWarmPool", name)["spec"]
    assert pool["replicas"] == 0
    assert named(BASE, "SandboxTemplate", pool["sandboxTemplateRef"]["name"])


def test_the_claim() -> None:
    """It names a pool, brings the two variables, and ends."""
    spec = CLAIM["spec"]
    assert named(BASE, "SandboxWarmPool", spec["warmPoolRef"]["name"])
    assert [each["name"] for each in spec["env"]] == ["HEPHAESTUS_GATEWAY_URL", "HEPHAESTUS_SANDBOX_TOKEN"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", spec["lifecycle"]["shutdownTime"])
    assert spec["lifecycle"]["shutdownPolicy"] == "Delete"


@pytest.mark.parametrize(("overlay", "runtime"), OVERLAYS.items())
def test_overlays_change_the_runtime_only(overlay: str, runtime: str) -> None:
    """An overlay names its RuntimeClass, and takes away nothing that protects."""
    changed = copy.deepcopy(TEMPLATES[overlay])
    pod = named(changed, "SandboxTemplate")["spec"]["podTemplate"]["spec"]
    assert pod.pop("runtimeClassName") == runtime
    assert changed == built(DEPLOY / "base")


def test_alerts() -> None:
    """Each alert waits for an event that the driver has, in the namespace of the sandboxes."""
    (config,) = built(DEPLOY / "alerts")
    events = (DEPLOY.parent / "docs" / "operations.md").read_text("utf-8")
    rules: list[Any] = yaml.safe_load(config["data"]["agent-driver.yaml"])["groups"][0]["rules"]
    asked = [re.findall(r'namespace="([^"]+)".*event="([^"]+)"', rule["expr"])[0] for rule in rules]
    assert asked == [("agent-sandboxes", "sandbox.unisolated"), ("agent-sandboxes", "token.exposed")]
    assert all(f"| `{event}` |" in events for _, event in asked)
