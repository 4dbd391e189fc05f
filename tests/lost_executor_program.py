"""A Spark cluster of two executors on this machine, one of which is killed: started by the tests of Spark.

    python lost_executor_program.py FOLDER

Prints the error of the run that lost an executor, and how many trees the next run has.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost", "PYSPARK_PYTHON": sys.executable}

import pyspark
from pyspark.sql import SparkSession

import tierank

N_TREES = 2000


def executors() -> list[int]:
    """The Java processes of the executors that this process has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command, name = (place / "cmdline").read_bytes(), (place / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        if name == "java" and b"CoarseGrainedExecutorBackend" in command and str(Path.cwd()).encode() in command:
            found.append(int(place.name))
    return found


def kill_one(checkpoint: Path) -> None:
    while not (checkpoint / "state.json").exists():
        time.sleep(0.1)
    os.kill(executors()[-1], signal.SIGKILL)


def main(folder: str) -> None:
    os.chdir(folder)
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.executor.extraJavaOptions": f"-Dtest.folder={Path.cwd()}",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    data = tierank.make_ranking(100, n_features=4, mean_length=15, max_length=30)
    rows = zip(
        *(column.tolist() for column in data.features.T),
        data.ratings.tolist(),
        data.query_of_row.tolist(),
        strict=True,
    )
    table = session.createDataFrame(list(rows), ["a", "b", "c", "d", "rating", "qid"])
    checkpoint = Path(folder) / "checkpoint"
    threading.Thread(target=kill_one, args=(checkpoint,), daemon=True).start()
    for _ in range(2):
        try:
            ranker = tierank.UMart(n_trees=N_TREES, n_leaves=4)
            fitted = tierank.distributed.fit(ranker, table, query="qid", rating="rating", checkpoint=checkpoint)
            print("trees", fitted.n_rounds_, flush=True)
        except tierank.TeamError as error:
            print("lost:", error, flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
