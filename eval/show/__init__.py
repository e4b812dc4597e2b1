"""Reports, comparisons, selections and exports of scores."""
