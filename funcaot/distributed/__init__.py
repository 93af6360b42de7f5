"""Many ranks: modules that ``torch.distributed`` has wrapped, and modules that funcaot shards."""
