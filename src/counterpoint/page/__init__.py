"""One page a run that a clinician can read: what it shows is gathered as text and numbers, drawn, and laid out."""
