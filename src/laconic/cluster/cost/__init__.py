"""What clusters cost: catalogues of instances, and the cheapest that meets a goal."""
