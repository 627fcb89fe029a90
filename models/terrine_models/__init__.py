"""Teachers, students and the ensembles they form."""
