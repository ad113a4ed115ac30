# The bootstrap of a machine whose cluster we may enter: the hook, then its Node, kept alive as a kubelet would.
# Run in the machine's directory with the cluster's id; status 0 means that the Node is Ready.
sh ./hook "$1" || exit
KUBECONFIG=$(cat kubeconfig)
export KUBECONFIG
name=${PWD##*/} agent=$PPID

renew_lease() {
    printf '{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "%s", "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": "%s", "leaseDurationSeconds": 40, "renewTime": "%s"}}' \
        "$name" "$name" "$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)" |
        kubectl apply --server-side --force-conflicts --filename=-
}

kubectl apply --server-side --force-conflicts --filename=node.json &&
    renew_lease &&
    kubectl patch node "$name" --subresource=status --patch-file=status.json &&
    kubectl wait --for=condition=Ready "node/$name" --timeout=30s || exit
# As long as the agent lives: of a machine without one nobody must say that it is well.
while kill -0 "$agent"; do
    sleep 10
    renew_lease
done >/dev/null 2>&1 &
