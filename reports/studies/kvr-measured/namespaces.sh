#!/bin/bash
# Two network namespaces, kv0 and kv1, joined by a pair of virtual Ethernet devices whose two
# directions are shaped to RATE; and the remote shell by which mpirun starts a process in one.
# Usage (root): namespaces.sh up RATE | down | shell NAME COMMAND...
set -eu
case $1 in
  up)
    ip netns add kv0 && ip netns add kv1
    ip link add kva netns kv0 type veth peer name kvb netns kv1
    i=0
    for device in kva kvb; do
      ip -n kv$i addr add 10.77.0.$((i + 1))/24 dev $device
      ip -n kv$i link set lo up && ip -n kv$i link set $device up
      tc -n kv$i qdisc add dev $device root tbf rate "$2" burst 256kb latency 100ms
      i=$((i + 1))
    done ;;
  down)
    for i in 0 1; do ip netns del kv$i 2>/dev/null || true; done ;;
  shell)  # a machine of its own by name, so that MPI does not take memory for the way
    name=$2
    shift 2
    exec ip netns exec "$name" unshare --uts bash -c "hostname $name; $*" ;;
esac
