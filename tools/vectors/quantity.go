package main

import (
	"errors"
	"math/big"

	"k8s.io/apimachinery/pkg/api/resource"
)

// quantityCase is one line of quantity.jsonl: what ParseQuantity makes of a text.
type quantityCase struct {
	In string `json:"in"`
	OK bool   `json:"ok"`

	// Error is the kind of refusal: format, suffix or numeric.
	Error string `json:"error,omitempty"`

	// Nano is the value held, in nano-units; absent beyond maxZeros (then Huge is true).
	Nano string `json:"nano,omitempty"`
	*printed

	// Rounded: the text had a part finer than one nano-unit, which was rounded away from zero.
	Rounded bool `json:"rounded,omitempty"`
	// Capped: a binary suffix and more than 2^63-1 whole units; 2^63-1 is held. Exact is the true count.
	Capped bool   `json:"capped,omitempty"`
	Exact  string `json:"exact,omitempty"`
	// Lenient: accepted as zero although the text has no digit.
	Lenient bool `json:"lenient,omitempty"`
	// ExponentRange: the exponent leaves 32 bits; the text is refused or read as another value.
	ExponentRange bool `json:"exponent_range,omitempty"`
	// Huge: more zeros than are worth writing down.
	Huge bool `json:"huge,omitempty"`
	// Verbatim: Text is the input, kept although it is not in canonical form.
	Verbatim bool `json:"verbatim,omitempty"`
}

// printed is how apimachinery writes a value.
type printed struct {
	// Format is the form remembered from parsing; it decides Text.
	Format string `json:"format"`
	Text   string `json:"text"`
	// Decimal and Binary are the canonical texts of the same value in the two forms that we choose by
	// resource name; absent beyond maxZeros, because the binary one would take apimachinery many minutes.
	Decimal string `json:"decimal,omitempty"`
	Binary  string `json:"binary,omitempty"`
	// Misprinted names the fields above whose text stands for another value.
	Misprinted []string `json:"misprinted,omitempty"`
}

// pairCase is one line of quantity_pairs.jsonl: a.Cmp(b) and a.Add(b).
type pairCase struct {
	A   string `json:"a"`
	B   string `json:"b"`
	Cmp int    `json:"cmp"`
	Sum string `json:"sum"`
	*printed

	// Capped: an operand was capped; ExactCmp and Exact (the sum) are the true results.
	Capped   bool   `json:"capped,omitempty"`
	ExactCmp *int   `json:"exact_cmp,omitempty"`
	Exact    string `json:"exact,omitempty"`
}

func quantityCases() ([]quantityCase, error) {
	inputs := quantityInputs()
	cases := make([]quantityCase, 0, len(inputs))
	for _, in := range inputs {
		c, err := quantityOf(in)
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

func pairCases() ([]pairCase, error) {
	inputs := pairInputs()
	cases := make([]pairCase, 0, len(inputs))
	for _, in := range inputs {
		c, err := pairOf(in[0], in[1])
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

func quantityOf(in string) (quantityCase, error) {
	c := quantityCase{In: in}
	exact, inGrammar := read(in)
	c.ExponentRange = exact.outOfRange

	quantity, err := resource.ParseQuantity(in)
	if err != nil {
		c.Error = refusal(err)
		if inGrammar && !exact.outOfRange {
			return c, unexplained("%q is refused (%v)", in, err)
		}
		return c, nil
	}

	c.OK = true
	c.printed = printQuantity(quantity)
	c.Verbatim = c.Text == in && c.Text != canonical(quantity, quantity.Format)
	held := heldBy(quantity)
	if nano, ok := held.nano(); ok {
		c.Nano = nano.String()
	} else {
		c.Huge = true
	}

	switch {
	case exact.outOfRange:
	case !inGrammar:
		c.Lenient = true
		if held.unscaled.Sign() != 0 {
			return c, unexplained("%q is outside the grammar and read as %s", in, c.Text)
		}
	default:
		var value decimal
		value, c.Rounded = exact.value.roundUp()
		if held.equal(value) {
			break
		}
		if !exact.binary || !held.abs().equal(maxInt64) {
			return c, unexplained("%q is read as %s", in, c.Text)
		}
		c.Capped = true
		nano, _ := value.nano()
		c.Exact = nano.String()
	}
	return c, nil
}

func refusal(err error) string {
	switch {
	case errors.Is(err, resource.ErrFormatWrong):
		return "format"
	case errors.Is(err, resource.ErrSuffix):
		return "suffix"
	case errors.Is(err, resource.ErrNumeric):
		return "numeric"
	}
	return err.Error()
}

func printQuantity(q resource.Quantity) *printed {
	p := &printed{Format: string(q.Format), Text: q.String()}
	held := heldBy(q)
	if _, ok := held.nano(); ok {
		p.Decimal, p.Binary = canonical(q, resource.DecimalSI), canonical(q, resource.BinarySI)
	}
	for _, field := range []struct{ name, text string }{
		{"text", p.Text}, {"decimal", p.Decimal}, {"binary", p.Binary},
	} {
		// A text without a digit or with an exponent out of range, kept verbatim, stands for what was made of it.
		if back, ok := read(field.text); ok && !back.outOfRange && !back.value.equal(held) {
			p.Misprinted = append(p.Misprinted, field.name)
		}
	}
	return p
}

// heldBy takes a copy because AsDec changes the representation, and with it the code that prints.
func heldBy(q resource.Quantity) decimal {
	return fromDec(q.AsDec())
}

// canonical computes the text in a form, past the copy of the input that String may return.
func canonical(q resource.Quantity, format resource.Format) string {
	q.Format = format
	number, suffix := q.CanonicalizeBytes(nil)
	return string(number) + string(suffix)
}

func pairOf(a, b string) (pairCase, error) {
	c := pairCase{A: a, B: b}
	// Parsed anew for every operation: a Quantity copied by value shares its big number with the original.
	left, right := resource.MustParse(a), resource.MustParse(b)
	c.Cmp = left.Cmp(right)

	sum := resource.MustParse(a)
	sum.Add(resource.MustParse(b))
	c.printed = printQuantity(sum)
	held := mustNano(heldBy(sum))
	c.Sum = held.String()

	exactA, exactB := exactNano(a), exactNano(b)
	exactCmp, exactSum := exactA.Cmp(exactB), new(big.Int).Add(exactA, exactB)
	if mustNano(heldBy(left)).Cmp(exactA) == 0 && mustNano(heldBy(right)).Cmp(exactB) == 0 {
		if c.Cmp != exactCmp || held.Cmp(exactSum) != 0 {
			return c, unexplained("%q and %q compare as %d and add up to %s", a, b, c.Cmp, c.Text)
		}
		return c, nil
	}
	c.Capped, c.ExactCmp, c.Exact = true, &exactCmp, exactSum.String()
	return c, nil
}

func exactNano(text string) *big.Int {
	exact, ok := read(text)
	if !ok || exact.outOfRange {
		panic("operands of pairs are in the grammar: " + text)
	}
	value, _ := exact.value.roundUp()
	return mustNano(value)
}

func mustNano(d decimal) *big.Int {
	nano, ok := d.nano()
	if !ok {
		panic("operands of pairs have few zeros")
	}
	return nano
}
