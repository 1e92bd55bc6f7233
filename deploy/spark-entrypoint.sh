#!/bin/sh
# What a container of the pipeline runs: with the word `executor`, which Spark passes to pods that it starts, one
# of Spark's executors; otherwise the command that it is given.
set -eu

[ "${1:-}" = executor ] || exec "$@"

# Spark numbers the Java options that it wants: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …
set --
number=0
while eval "[ -n \"\${SPARK_JAVA_OPT_$number+given}\" ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
    number=$((number + 1))
done

exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
