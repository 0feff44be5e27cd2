"""Have mlflow make its tables, and fill them with two experiments and the runs of one."""

import os
import time

from mlflow.entities import Metric, Param, RunTag
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

RUNS = 50


def main() -> None:
    """Make experiment 1 with RUNS runs, and experiment 2 for what a bench adds."""
    url = os.environ["_MLFLOW_SERVER_FILE_STORE"]
    store = SqlAlchemyStore(url, os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"])
    first, _ = (store.create_experiment(name) for name in ("searched", "added-to"))
    now_ms = int(time.time() * 1000)
    for each in range(RUNS):
        run = store.create_run(first, "bench", now_ms + each, [], f"run-{each:03}")
        store.log_batch(
            run.info.run_id,
            [Metric(f"metric{nth}", each * nth, now_ms, 0) for nth in range(5)],
            [Param(f"param{nth}", str(each)) for nth in range(5)],
            [RunTag(f"tag{nth}", str(each)) for nth in range(3)],
        )


if __name__ == "__main__":
    main()
