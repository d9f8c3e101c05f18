"""Published, measured runs replayed against the cost model: what ``astra validate`` needs."""
