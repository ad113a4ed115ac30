package main

import (
	"math/big"
	"regexp"
	"strconv"

	"gopkg.in/inf.v0"
)

// decimal is unscaled × 10^exponent without a factor of ten in unscaled, so that equal values are equal pairs
// and 1e99999999 needs no hundred million digits.
type decimal struct {
	unscaled *big.Int
	exponent int64
}

const nanoExponent = -9

// maxZeros bounds the zeros after the digits of a printed integer; a value beyond it is described by its text alone.
const maxZeros = 1000

var (
	ten      = big.NewInt(10)
	maxInt64 = newDecimal(big.NewInt(1<<63-1), 0)

	// grammar is the one of the specification (operator.md §5.4): at least one digit, then one suffix.
	grammar = regexp.MustCompile(
		`^([+-]?)([0-9]*)\.?([0-9]*)(?:([numkMGTPE]?)|([KMGTPE]i)|[eE]([+-]?[0-9]+))$`)
	decimalPower = map[string]int64{"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
	binaryPower  = map[string]uint{"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
)

// reading is a text read by the grammar alone.
type reading struct {
	value  decimal
	binary bool
	// outOfRange: the exponent, or the exponent less the number of decimals, does not fit 32 bits.
	outOfRange bool
}

// read returns false for a text outside the grammar.
func read(text string) (reading, bool) {
	part := grammar.FindStringSubmatch(text)
	if part == nil || part[2]+part[3] == "" {
		return reading{}, false
	}
	sign, digits, decimals, si, binary, exponentText := part[1], part[2]+part[3], part[3], part[4], part[5], part[6]
	unscaled, _ := new(big.Int).SetString(digits, 10)
	if sign == "-" {
		unscaled.Neg(unscaled)
	}
	exponent := decimalPower[si]
	if exponentText != "" {
		var err error
		exponent, err = strconv.ParseInt(exponentText, 10, 32)
		if err != nil {
			return reading{outOfRange: true}, true
		}
	}
	exponent -= int64(len(decimals))
	if exponent != int64(int32(exponent)) {
		return reading{outOfRange: true}, true
	}
	unscaled.Lsh(unscaled, binaryPower[binary])
	return reading{value: newDecimal(unscaled, exponent), binary: binary != ""}, true
}

func newDecimal(unscaled *big.Int, exponent int64) decimal {
	if unscaled.Sign() == 0 {
		return decimal{new(big.Int), 0}
	}
	unscaled = new(big.Int).Set(unscaled)
	for {
		quotient, rest := new(big.Int).QuoRem(unscaled, ten, new(big.Int))
		if rest.Sign() != 0 {
			return decimal{unscaled, exponent}
		}
		unscaled, exponent = quotient, exponent+1
	}
}

func fromDec(d *inf.Dec) decimal {
	return newDecimal(d.UnscaledBig(), -int64(d.Scale()))
}

func (d decimal) equal(other decimal) bool {
	return d.exponent == other.exponent && d.unscaled.Cmp(other.unscaled) == 0
}

func (d decimal) abs() decimal {
	return decimal{new(big.Int).Abs(d.unscaled), d.exponent}
}

// roundUp rounds away from zero to whole nano-units and tells whether that changed the value.
func (d decimal) roundUp() (decimal, bool) {
	if d.exponent >= nanoExponent {
		return d, false
	}
	// There is no factor of ten in unscaled, so something is always cut off.
	quotient := new(big.Int).Quo(d.unscaled, power10(nanoExponent-d.exponent))
	quotient.Add(quotient, big.NewInt(int64(d.unscaled.Sign())))
	return newDecimal(quotient, nanoExponent), true
}

// nano returns the count of nano-units of a value that has no finer part, or false beyond maxZeros.
func (d decimal) nano() (*big.Int, bool) {
	shift := d.exponent - nanoExponent
	if shift > maxZeros {
		return nil, false
	}
	return new(big.Int).Mul(d.unscaled, power10(shift)), true
}

func power10(n int64) *big.Int {
	return new(big.Int).Exp(ten, big.NewInt(n), nil)
}
