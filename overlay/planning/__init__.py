"""Planning: features against the pristine text of a target; pure, nothing is written or run."""
