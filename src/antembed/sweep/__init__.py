"""Many runs: which settings to try, trials, the best of several runs, fronts."""
