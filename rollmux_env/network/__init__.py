"""Networks: flows that share links, the fabrics they cross, and what the fabrics cost."""
