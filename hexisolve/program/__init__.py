"""The plan compiled to one program per rank, its proofs and its clock; free of torch."""
