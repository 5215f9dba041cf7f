"""Networks with a leading axis of K independent members, and the one loop that trains them."""
