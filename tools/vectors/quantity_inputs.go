package main

import (
	"fmt"
	"math/big"
	"strings"
)

var (
	decimalSuffixes = []string{"n", "u", "m", "", "k", "M", "G", "T", "P", "E"}
	binarySuffixes  = []string{"Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	allSuffixes     = append(append([]string{}, decimalSuffixes...), binarySuffixes...)

	// Each group is one value in many forms: comparisons that must come out equal, sums that differ in form alone.
	equalTexts = [][]string{
		{"0", "-0", "0Ki", "0e9", "0.0000000000"},
		{"1n", "0.1n", "0.000000001", "1e-9", "0.001u"},
		{"1", "1000m", "1000000u", "1e0", "0.001k", "+1.0"},
		{"512", "0.5Ki", "0.512k", "512000m"},
		{"1Ki", "1024", "1.024k", "1024000m", "1.024e3"},
		{"1Mi", "1024Ki", "1048576", "1.048576M", "1048576e0"},
		{"-1Gi", "-1073741824", "-1.073741824G", "-1073741.824k"},
		{"1Ei", "1152921504606846976", "1024Pi", "1.152921504606846976E"},
		{"1e18", "1E", "1000P", "1000000000000000000", "976562500000000Ki"},
	}
)

// quantityInputs lists the texts to parse, each once.
func quantityInputs() []string {
	r := newRandom(1)
	var all []string
	for _, group := range [][]string{
		remarkable(), shortTexts(), numbersWithSuffixes(), exponents(), longFractions(), nearInt64(),
		longNumbers(), malformed(), randomTexts(r, 1300), damagedTexts(r, 900),
	} {
		all = append(all, group...)
	}
	return unique(all)
}

// pairInputs lists pairs of texts that parse, with values small enough to write down.
func pairInputs() [][2]string {
	r := newRandom(2)
	pairs := [][2]string{
		{"500m", "500m"}, {"1500m", "0"}, {"0.5Gi", "512Mi"}, {"1Gi", "1G"}, {"1G", "1Gi"}, {"100k", "0"},
		{"0", "1Gi"}, {"0Ki", "1k"}, {"0k", "1Ki"}, {"1e3", "1k"}, {"1k", "1e3"}, {"0.1n", "0.1n"},
		{"-0.1n", "0.1n"}, {"1Ki", "-1Ki"}, {"-1", "-1.5"}, {"-0.5", "0"}, {"0.0001Ki", "1Gi"},
		{"1Gi", "0.0001Ki"}, {"1023", "1"}, {"1Ki", "1"}, {"1.5Ki", "512"}, {"1Gi", "1m"},
		{"500E", "500E"}, {"999999999999999999", "1"}, {"9223372036854775807", "1"},
		{"-9223372036854775808", "-1"}, {"7Ei", "1Ei"}, {"8Ei", "9Ei"}, {"8Ei", "9223372036854775807"},
		{"8Ei", "8Ei"}, {"-8Ei", "-9Ei"}, {"8Ei", "-8Ei"}, {"8Ei", "1"}, {"1e30", "1n"}, {"1e30", "1Ei"},
		{"4Ei", "4Ei"}, {"1180591620717411303423Ki", "1Ki"}, {"1180591620717411303423", "1"},
	}
	operands := append(numbersWithSuffixes(), nearInt64()...)
	var near []string
	for _, group := range equalTexts {
		near = append(near, group...)
		for _, a := range group {
			for _, b := range group {
				pairs = append(pairs, [2]string{a, b})
			}
		}
	}
	near = append(near, "1023", "1025", "1023.999999999", "1024.000000001", "-1n", "-1Ki", "-1024", "1000M", "1E", "7Ei", "8Ei")
	for range 400 {
		pairs = append(pairs, [2]string{pick(r, near), pick(r, near)})
	}
	for range 750 {
		a, b := pick(r, operands), pick(r, operands)
		if r.chance(40) {
			a = randomText(r)
		}
		if r.chance(40) {
			b = randomText(r)
		}
		pairs = append(pairs, [2]string{a, b})
	}
	return unique(pairs)
}

func unique[T comparable](items []T) []T {
	seen := make(map[T]bool, len(items))
	var kept []T
	for _, item := range items {
		if !seen[item] {
			seen[item] = true
			kept = append(kept, item)
		}
	}
	return kept
}

// remarkable holds the examples of the specification and the known surprises of apimachinery.
func remarkable() []string {
	return []string{
		"", "0", "1", "500m", "1500m", "0.5Gi", "512Mi", "1Gi", "1G", "2073741824", "100k", "1e3", "0.1n",
		"16Gi", "17179869184", "1e1.5", "K", "1K", "ki", "1ki", "1kI", "1KI", "1KiB", "1KB", "1B", "1b", "1i",
		// No digit at all.
		"+", "-", ".", "+.", "-.", "m", "k", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "E", "e", "e3", "E3", "-e3", ".e3",
		"e-9", "e-10", ".Ki", ".Ei", "+m", "-Gi", ".E",
		// Copied instead of canonicalised, and their neighbours that are not.
		"+5", "+5Gi", "+1.5", "007", "007Ki", "-007", "1.500", "1.050", "1.234", "1.500k", "0.500", "1.000",
		"1.123456M", "1.5e4", "1E3", "1e+3", "1e03", "1E+03", "5.", "5.Ki", "5.k", "8Ki", "1024Ki", "1000m",
		"1000k", "1000Mi", "1024Mi", "100e0", "12e1", "12e2", "1e2", "1e1",
		// Larger than the suffixes reach.
		"1000E", "1000000000000000000000", "1e21", "10e20", "1000e18", "1001E", "999E", "1100E", "5000000E",
		"1024Ei", "1e24", "1e30", "1e400", "-1e400", "123e300", "1180591620717411303424", "2361183241434822606848e0",
		// The cap and its edge.
		"8Ei", "-8Ei", "9Ei", "7Ei", "7.9999999999999999999Ei", "7.99999999999999999999999999Ei", "8191Pi", "8192Pi",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
		"9007199254740991Ki", "9007199254740992Ki", "9007199254740991.999Ki", "1000Ei", "100000000000000000000Ki",
		// Exponents at the edge of 32 and 64 bits. (Between these, apimachinery computes a power of ten with up to
		// two billion digits, so it is not asked.)
		"1e2147483647", "1e4294967296", "1e4294967299", "15e-4294967297", "1.5e-2147483648",
		"1e9223372036854775807", "1e9223372036854775808", "1e-9223372036854775809", "1e99999999999999999999",
		"0e2147483647", "0e99999999999999999999", "1e99999999", "1e999999999", "-25e1000000", "1e00000000000000000000005",
		"1e-00000000000000000000005", "1e-400", "-1e-400", "1e-5000", "0e-400",
		// Zeros.
		"-0", "+0", "00", "000.000", "0.", ".0", "-.0", "0n", "0Ki", "0.0Ki", "0e5", "0E-5", "0.0000000000", "0Ei",
		"-0Ei", "0.000000000000000000000Gi",
		// Finer than a nano-unit.
		"0.1n", "-0.1n", "0.9n", "1.1n", "-1.1n", "1.0n", "0.0000000001", "-0.0000000001", "0.0000000009",
		"1.0000000001", "1.00000000010", "0.9999999999", "0.99999999999999999999", "-0.99999999999999999999",
		"0.0001u", "0.0000001m", "0.00000000000001k", "0.0000000000001Ki", "-0.0000000000001Ki", "0.00000000000000000001Ei",
		"1e-10", "-1e-10", "11e-10", "19e-10", "1.5e-9", "123456789e-18", "3.141592653589793238", "2.718281828459045235Gi",
		// Words and other notations.
		"inf", "Inf", "+Inf", "-inf", "infinity", "nan", "NaN", "null", "nil", "none", "true", "zero", "one",
		"0x10", "0X1F", "0b101", "0o17", "1_000", "1,000", "1 000", "1'000", "1e3e3", "1e3k", "1ke3", "1Kie3",
		"1e", "1e+", "1e-", "1E+", "1E-", "1e++3", "1e+-3", "1ee3", "1EE", "1eE3", "1Ee3", "1e 3", "1e3.0", "1e.5", "1e3.",
		"1..0", "1.0.0", ".5.", "..5", "1.-5", "1-", "1+", "+-1", "-+1", "--1", "++1", "1-1", "1+1", "- 1", "+ 1",
		"1mm", "1mk", "1km", "1MiKi", "1MM", "1iK", "1iM", "1Kii", "1in", "1ni", "1ui", "1mi", "1Mii", "1g", "1gi", "1t",
		"1p", "1P", "1p1", "1Zi", "1Y", "1Z", "1R", "1Q", "1h", "1d", "1da", "1c", "1μ", "1µ", "1U", "1N", "1%", "50%",
		"$1", "1$", "1m5", "1k5", "1Ki5", "1M-5", "1G+5", "1n0", "(1)", "[1]", "{1}", "\"1\"", "'1'", "1;", "1\x00", "\x001",
		// White space.
		" ", " 1", "1 ", "\t1", "1\t", "1\n", "\n1", "1\r\n", "1 Gi", "1 m", " 1Gi ", "\u00a01", "1\u00a0", "1\u2009Gi",
		"\u20281", "\ufeff1", "1\u200b",
		// Characters that look like digits, signs, dots or letters.
		"１", "１２", "٣", "३", "৩", "๓", "一", "²", "1²", "½", "1½", "Ⅳ", "①", "−1", "‐1", "–1", "＋1", "1．5", "1٫5", "1·5",
		"1Кi", "1Κi", "1Мi", "1е3", "1Ｇi", "1ｍ", "1Gı", "1Gí",
	}
}

// shortTexts is every text of at most three characters over those that carry the grammar.
func shortTexts() []string {
	const alphabet = "01.+-eEiKk"
	texts := []string{""}
	for start := 0; len(texts[start]) < 3; start++ {
		for _, letter := range alphabet {
			texts = append(texts, texts[start]+string(letter))
		}
	}
	return texts
}

func numbersWithSuffixes() []string {
	numbers := []string{
		"1", "-1", "+1", "2", "7", "10", "100", "1000", "1023", "1024", "-1024", "1025", "1500", "2048", "4096",
		"65536", "1000000", "1048576", "123456789", "0.5", "-0.5", ".5", "5.", "1.5", "-1.5", "+2.25", "1.001", "1.024",
		"0.001", "0.125", "0.0009765625", "12.3456789", "999.999", "1023.999999999", "00012", "0012.500",
	}
	var texts []string
	for _, suffix := range allSuffixes {
		for _, number := range numbers {
			texts = append(texts, number+suffix)
		}
	}
	return texts
}

func exponents() []string {
	powers := []string{
		"-18", "-12", "-10", "-9", "-8", "-6", "-5", "-3", "-2", "-1", "-0", "0", "00", "+0", "1", "+1", "2", "3", "+3", "03",
		"4", "6", "9", "12", "15", "17", "18", "19", "20", "21", "25", "30", "40",
	}
	var texts []string
	for i, power := range powers {
		for j, number := range []string{"1", "-2", "15", "1.5", ".5", "-.25", "100", "1024", "12345678901234567890", "0.000000001"} {
			letter := "e"
			if (i+j)%3 == 0 {
				letter = "E"
			}
			texts = append(texts, number+letter+power)
		}
	}
	return texts
}

// longFractions has fractions of every length up to beyond a nano-unit, for every suffix.
func longFractions() []string {
	const digits = "1234567890123456789012345678901"
	var texts []string
	for i, suffix := range allSuffixes {
		sign := []string{"", "-"}[i%2]
		for length := 1; length <= 14; length++ {
			texts = append(texts,
				sign+"0."+strings.Repeat("0", length-1)+"1"+suffix,
				sign+"3."+digits[:length]+suffix)
		}
		for _, length := range []int{17, 18, 19, 20, 27, 28, 30} {
			texts = append(texts, sign+"0."+digits[:length]+suffix, sign+"."+strings.Repeat("9", length)+suffix)
		}
	}
	return texts
}

// nearInt64 has for every suffix the numbers whose value is next to 2^63-1 whole units.
func nearInt64() []string {
	limit := big.NewInt(1<<63 - 1)
	unit := func(suffix string) *big.Rat {
		if power, ok := binaryPower[suffix]; ok {
			return new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), power))
		}
		power := decimalPower[suffix]
		if power < 0 {
			return new(big.Rat).SetFrac(big.NewInt(1), power10(-power))
		}
		return new(big.Rat).SetInt(power10(power))
	}
	var texts []string
	for _, suffix := range allSuffixes {
		ratio := new(big.Rat).Quo(new(big.Rat).SetInt(limit), unit(suffix))
		whole := new(big.Int).Quo(ratio.Num(), ratio.Denom())
		for _, delta := range []int64{-1, 0, 1} {
			number := new(big.Int).Add(whole, big.NewInt(delta))
			texts = append(texts, number.String()+suffix, "-"+number.String()+suffix, number.String()+".5"+suffix)
		}
	}
	return texts
}

// longNumbers crosses the lengths at which apimachinery changes from 64-bit to big arithmetic.
func longNumbers() []string {
	const digits = "98765432109876543210987654321098765432109876543210"
	var texts []string
	for _, suffix := range allSuffixes {
		for _, length := range []int{1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 19, 20, 25} {
			texts = append(texts, digits[:length]+suffix)
			if length > 2 {
				texts = append(texts, "-"+digits[:length-2]+"."+digits[length-2:length]+suffix)
			}
		}
	}
	for _, length := range []int{40, 64, 65, 100, 400} {
		long := strings.Repeat(digits, 8)[:length]
		texts = append(texts, long, "-"+long, long+"m", long+"Ki", "0."+long, long+"x", "1e"+long,
			strings.Repeat("0", length)+"1", strings.Repeat("9", length)+"n", "1"+strings.Repeat("0", length))
	}
	return texts
}

// malformed has every suffix of two letters that could be mistaken for one, and more signs and dots than allowed.
func malformed() []string {
	var texts []string
	for _, first := range "EKMGTPkmunie" {
		for _, second := range "iIeEkmKB" {
			texts = append(texts, fmt.Sprintf("12%c%c", first, second))
		}
	}
	for _, suffix := range allSuffixes {
		for _, pattern := range []string{
			"1 %s", " 1%s", "1%s ", "1..5%s", "1.5.5%s", "+-1%s", "1-%s", "1%s1", "1%s-1", "1%s.5", "x%s", "1e3%s", "1,5%s", "٣%s", "1_0%s",
		} {
			texts = append(texts, fmt.Sprintf(pattern, suffix))
		}
	}
	return texts
}

func randomTexts(r random, count int) []string {
	texts := make([]string, count)
	for i := range texts {
		texts[i] = randomText(r)
	}
	return texts
}

// randomText is in the grammar.
func randomText(r random) string {
	var text strings.Builder
	text.WriteString(pick(r, []string{"", "", "", "", "", "", "-", "-", "+"}))
	whole, decimals := randomLength(r), 0
	if r.chance(50) {
		decimals = randomLength(r)
	}
	if whole+decimals == 0 {
		whole = 1
	}
	writeDigits(r, &text, whole)
	if decimals > 0 || r.chance(5) {
		text.WriteByte('.')
		writeDigits(r, &text, decimals)
	}
	if r.chance(20) {
		fmt.Fprintf(&text, "%s%s%d", pick(r, []string{"e", "E"}), pick(r, []string{"", "+", "-"}), r.below(24))
	} else {
		text.WriteString(pick(r, allSuffixes))
	}
	return text.String()
}

// randomLength favours short numbers: most quantities are.
func randomLength(r random) int {
	if r.chance(75) {
		return r.below(6)
	}
	return r.below(24)
}

func writeDigits(r random, text *strings.Builder, count int) {
	zeros := 0
	if r.chance(20) {
		zeros = r.below(count + 1)
	}
	for i := range count {
		if i >= count-zeros {
			text.WriteByte('0')
		} else {
			text.WriteByte(byte('0' + r.below(10)))
		}
	}
}

// damagedTexts takes texts of the grammar and inserts, replaces or removes one character.
func damagedTexts(r random, count int) []string {
	alphabet := []rune("0123456789.+-eEinumkKMGTP _,xNiBµ１")
	texts := make([]string, count)
	for i := range texts {
		text := []rune(randomText(r))
		at := r.below(len(text))
		switch r.below(4) {
		case 0:
			text[at] = pick(r, alphabet)
		case 1:
			text = append(text[:at], text[at+1:]...)
		default:
			text = append(text[:at], append([]rune{pick(r, alphabet)}, text[at:]...)...)
		}
		texts[i] = string(text)
	}
	return texts
}
