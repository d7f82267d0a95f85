// Renders charts that are embedded in Istio's module: NAMESPACE CHART..., with the values on standard input.
package main

import (
	"fmt"
	"io"
	"log"
	"os"

	"istio.io/istio/operator/pkg/helm"
	"istio.io/istio/operator/pkg/values"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	given := values.Map{}
	if err := yaml.Unmarshal(text, &given); err != nil {
		log.Fatal(err)
	}
	for _, chart := range os.Args[2:] {
		documents, _, err := helm.Render("istio", os.Args[1], chart, values.MakeMap(given, "spec", "values"), nil)
		if err != nil {
			log.Fatalf("%s: %v", chart, err)
		}
		for _, document := range documents {
			fmt.Printf("---\n%s\n", document.Content)
		}
	}
}
