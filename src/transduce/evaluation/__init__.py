"""Section 6: outputs in; figures, plots and pages out."""
