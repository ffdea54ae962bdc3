"""Services that take jobs of many tenants and bring each to an end, whatever crashes."""
