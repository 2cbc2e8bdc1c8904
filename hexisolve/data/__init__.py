"""What is placed and where: clusters, model specs, workloads, instances."""
