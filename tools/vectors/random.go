package main

import "math/rand/v2"

// random draws straight from the generator: the helpers of math/rand/v2 may change with a Go release.
type random struct{ source *rand.PCG }

func newRandom(seed uint64) random {
	return random{rand.NewPCG(seed, 0)}
}

// below returns a number in [0, n). Its slight bias does not matter here.
func (r random) below(n int) int {
	return int(r.source.Uint64() % uint64(n))
}

func (r random) chance(percent int) bool {
	return r.below(100) < percent
}

func pick[T any](r random, from []T) T {
	return from[r.below(len(from))]
}
