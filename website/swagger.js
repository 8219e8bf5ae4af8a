// The reference of the API, from the document next to it. Operations cannot be tried here: the site is no server.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  supportedSubmitMethods: [],
  validatorUrl: null, // or the document's address would be sent to another host
});
