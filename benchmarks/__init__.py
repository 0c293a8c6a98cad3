"""Speed, measured as ratios in one run; results with versions and sizes in results/."""
