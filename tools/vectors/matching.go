package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// matchingCase is one line of matching.jsonl: does a set of labels satisfy all requirements?
type matchingCase struct {
	Labels       map[string]string `json:"labels"`
	Requirements []requirement     `json:"requirements"`
	Matches      bool              `json:"matches"`
	// Invalid names the fields that NewRequirement objects to (a list that is empty or must be, a key or value
	// that is no label). It returns the requirement beside its error, and Matches is what that one answers.
	Invalid []string `json:"invalid,omitempty"`
}

type requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

var (
	operators  = []string{"In", "NotIn", "Exists", "DoesNotExist"}
	selections = map[string]selection.Operator{
		"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
	}
)

func matchingCases() ([]matchingCase, error) {
	var cases []matchingCase
	for _, input := range append(oneRequirement(), severalRequirements(newRandom(3))...) {
		c, err := matchingOf(input.labels, input.requirements)
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

func matchingOf(set map[string]string, requirements []requirement) (matchingCase, error) {
	c := matchingCase{Labels: set, Requirements: requirements}
	selector := labels.NewSelector()
	all := true
	for i, r := range requirements {
		path := field.NewPath("requirements").Index(i)
		built, err := labels.NewRequirement(r.Key, selections[r.Operator], r.Values, field.WithPath(path))
		c.Invalid = append(c.Invalid, objections(err)...)
		all = all && built.Matches(labels.Set(set))
		selector = selector.Add(*built)
	}
	c.Matches = selector.Matches(labels.Set(set))
	if c.Matches != all {
		return c, unexplained("a selector is not the conjunction of its requirements: %v on %v", requirements, set)
	}
	return c, nil
}

func objections(err error) []string {
	if err == nil {
		return nil
	}
	var all utilerrors.Aggregate
	if !errors.As(err, &all) {
		panic(err) // NewRequirement promises an aggregate of field errors
	}
	var fields []string
	for _, one := range all.Errors() {
		var objection *field.Error
		if errors.As(one, &objection) {
			fields = append(fields, objection.Field)
		}
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

type matchingInput struct {
	labels       map[string]string
	requirements []requirement
}

// oneRequirement crosses every operator with every kind of value list and every state of the label.
func oneRequirement() []matchingInput {
	const key = "topology.example.com/rack"
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf("r%02d", 39-i)
	}
	lists := [][]string{
		{}, {""}, {"r01"}, {"R01"}, {"r01", "r01"}, {"r02", "r01"}, {"r02", "r03"}, {"", "r01"}, {"r01", "R01"},
		{"r0"}, {"r011"}, many, {"not a label value"}, {"é"}, {strings.Repeat("r", 64)},
	}
	sets := []map[string]string{
		{},
		{key: ""},
		{key: "r01"},
		{key: "R01"},
		{key: "r02"},
		{key: "r"},
		{"topology.example.com/Rack": "r01"},
		{"rack": "r01", "topology.example.com": "r01"},
		{key: "not a label value"},
		{key: "é", "other": "r01"},
		{key: "r39", "a": "1", "b": "2"},
	}
	var inputs []matchingInput
	for _, operator := range operators {
		for _, values := range lists {
			if len(values) > 1 && (operator == "Exists" || operator == "DoesNotExist") {
				continue // one value already shows that Exists and DoesNotExist ignore theirs
			}
			for _, set := range sets {
				inputs = append(inputs, matchingInput{set, []requirement{{key, operator, values}}})
			}
		}
	}
	for _, oddKey := range []string{"", "not a key", "a/b/c", "-a", "é", strings.Repeat("k", 64)} {
		for _, operator := range operators {
			r := requirement{oddKey, operator, []string{}}
			if operator == "In" || operator == "NotIn" {
				r.Values = []string{"v"}
			}
			inputs = append(inputs,
				matchingInput{map[string]string{oddKey: "v"}, []requirement{r}},
				matchingInput{map[string]string{"other": "v"}, []requirement{r}})
		}
	}
	return inputs
}

// severalRequirements draws conjunctions over few keys and values, so that keys meet and some sets match.
func severalRequirements(r random) []matchingInput {
	keys := []string{
		"node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "kubernetes.io/arch", "gpu", "GPU", "example.com/pool",
	}
	values := []string{"", "a", "A", "b", "m6i.large", "m6i.2xlarge", "zone-1", "zone-2", "true", "1"}
	inputs := []matchingInput{
		{map[string]string{}, []requirement{}},
		{map[string]string{"gpu": "a"}, []requirement{}},
	}
	for range 400 {
		set := map[string]string{}
		for _, key := range keys {
			if r.chance(60) {
				set[key] = pick(r, values)
			}
		}
		requirements := make([]requirement, 1+r.below(4))
		for i := range requirements {
			drawn := requirement{pick(r, keys), pick(r, operators), []string{}}
			if drawn.Operator == "In" || drawn.Operator == "NotIn" {
				for range 1 + r.below(4) {
					drawn.Values = append(drawn.Values, pick(r, values))
				}
				// Otherwise hardly any conjunction would match.
				if value, ok := set[drawn.Key]; ok && drawn.Operator == "In" && r.chance(70) {
					drawn.Values = append(drawn.Values, value)
				}
			}
			requirements[i] = drawn
			if i > 0 && r.chance(10) {
				requirements[i] = requirements[i-1]
			}
		}
		inputs = append(inputs, matchingInput{set, requirements})
	}
	return inputs
}
