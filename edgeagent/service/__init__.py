"""The agent as the service of a box: commands, schedules, sweeps, delivery."""
