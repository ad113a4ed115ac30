"""An example provider whose machines are Nodes that kwok plays the kubelet of."""
