"""An example provider for a real cloud: machines are EC2 instances."""

from bigfleet_providerkit.examples.ec2.backend import Ec2

__all__ = ["Ec2"]
