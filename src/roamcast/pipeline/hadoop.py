"""Stores as Spark reaches them: Hadoop's file systems, through the Java process of the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from roamcast.errors import InputError
from roamcast.pipeline.places import Store, checked_log
from roamcast.pipeline.schema import VERSION_KEY, version_problem


class HadoopFiles:
    """Any store for which Spark has a connector."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._java = context._jvm
        self._conf = context._jsc.hadoopConfiguration()

    def log_files(self, log: Store) -> dict[str, int]:
        names = self.listed(log)
        return checked_log(log, {(log / name).hadoop_url: name for name in names}, self._rows)

    def listed(self, folder: Store) -> list[str]:
        filesystem, path = self._reach(folder)
        if not filesystem.exists(path):
            return []
        names = []
        entries = filesystem.listFiles(path, True)
        whole = filesystem.makeQualified(path).toUri().getPath().rstrip("/")
        while entries.hasNext():
            names.append(entries.next().getPath().toUri().getPath().removeprefix(whole).lstrip("/"))
        return sorted(names)

    def put(self, file: Path, place: Store) -> None:
        filesystem, path = self._reach(place)
        filesystem.mkdirs(path.getParent())
        filesystem.copyFromLocalFile(False, True, self._path(file.absolute().as_uri()), path)

    def get(self, place: Store, file: Path) -> None:
        filesystem, path = self._reach(place)
        filesystem.copyToLocalFile(False, path, self._path(file.absolute().as_uri()), True)

    def move(self, old: Store, new: Store) -> None:
        filesystem, path = self._reach(old)
        target = self._path(new.hadoop_url)
        filesystem.mkdirs(target.getParent())
        if not filesystem.rename(path, target):
            raise InputError(f"{new}: cannot be written ({old} cannot be renamed)")

    def remove(self, place: Store) -> None:
        filesystem, path = self._reach(place)
        filesystem.delete(path, True)

    def _path(self, url: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(url)

    def _reach(self, place: Store) -> tuple[Any, Any]:
        """The file system and the path; one line if Spark lacks it: connectors do not come with PySpark."""
        try:
            path = self._path(place.hadoop_url)
            return path.getFileSystem(self._conf), path
        except Py4JJavaError as error:
            reason = str(error.java_exception).partition("\n")[0]
            raise InputError(
                f"{place}: Spark has no file system for it ({reason}); give the connector's jars with"
                " --conf spark.jars=..., or use --engine duckdb"
            ) from None

    def _rows(self, file: str) -> int:
        hadoop = self._java.org.apache.parquet.hadoop
        try:
            reader = hadoop.ParquetFileReader.open(
                hadoop.util.HadoopInputFile.fromPath(self._path(file), self._conf)
            )
        except Py4JJavaError:
            raise InputError(f"log file {file}: is no whole Parquet file (truncated or damaged)") from None
        try:
            about = reader.getFooter().getFileMetaData()
            names = [field.getName() for field in about.getSchema().getFields()]
            problem = version_problem(about.getKeyValueMetaData().get(VERSION_KEY.decode()), names)
            if problem is not None:
                raise InputError(f"log file {file} {problem}")
            return int(reader.getRecordCount())
        finally:
            reader.close()
