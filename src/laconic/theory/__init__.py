"""What convergence theory promises, as calculators, and small simulations to hold the promises against."""
