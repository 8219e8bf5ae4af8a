// The reader's choice of colours holds for everything on a page: for pictures that come in two versions, and for the
// reference of the API, which has colours of its own.
const colour = () => {
  const dark = document.body.dataset.mdColorScheme === "slate";
  document.documentElement.classList.toggle("dark-mode", dark);
  document.querySelectorAll("picture source").forEach((one) => (one.media = dark ? "all" : "not all"));
};
new MutationObserver(colour).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
colour();
