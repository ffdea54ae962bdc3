"""The Ray driver: the policy that decides under a virtual clock runs real jobs, as gangs of actors on named hosts."""
